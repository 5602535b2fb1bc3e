package idempotency

import "time"

// What black-box tests of this package need of its inside.

// CheckPolicy is what Stage does with a policy.
func CheckPolicy(p Policy) (filled Policy, warnings []string, err error) {
	filled = p.withDefaults()
	warnings, err = filled.validate()
	return filled, warnings, err
}

// Bounds of the engine's patience.
const (
	BeginTimeout   time.Duration = beginTimeout
	FinishTimeout  time.Duration = 2 * briefTime
	ResolveTimeout time.Duration = resolveTimeout
	MaxTries                     = maxTries
	MaxVanished                  = maxVanished
	LongestPause                 = longestPause
	SeenSize                     = seenSize
)

// Seen is the set of keys that a process has met.
type Seen struct{ s seen }

// NewSeen makes an empty set.
func NewSeen() *Seen { return &Seen{seen{now: make(map[ID]struct{})}} }

// Add puts a key in.
func (s *Seen) Add(id ID) { s.s.add(id) }

// Has reports whether a key is in.
func (s *Seen) Has(id ID) bool { return s.s.has(id) }

// Size is the number of keys that are kept.
func (s *Seen) Size() int { return len(s.s.now) + len(s.s.old) }
