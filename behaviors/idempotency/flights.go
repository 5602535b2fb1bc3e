package idempotency

import (
	"sync"
	"sync/atomic"
)

// flights lets one dispatch of a key at a time past, in this process. It decides nothing, the store does; it spares the
// duplicates a database connection each, which would otherwise starve everybody else's commands.
type flights struct {
	mu sync.Mutex
	m  map[ID]*flight
}

// flight is a dispatch that is under way.
type flight struct {
	landed chan struct{}          // closed when it has left
	rec    *Record                // then, the completed record that it has met or made, or nil
	owner  atomic.Pointer[Record] // while it owns the key under a lease: the record as it stands in the store
}

// enter makes the caller the one, who must call leave, and gives it its flight; or it gives the other one's.
func (f *flights) enter(id ID) (own, other *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.m[id]; ok {
		return nil, other
	}
	own = &flight{landed: make(chan struct{})}
	f.m[id] = own
	return own, nil
}

// owned reports whether a dispatch of this process owns the key under a lease.
func (f *flights) owned(id ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	other, ok := f.m[id]
	return ok && other.owner.Load() != nil
}

// leave lets the others go on, if own has not left before. They read rec, which has just been committed, and so need not ask the
// store for it.
func (f *flights) leave(id ID, own *flight, rec *Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.m[id] != own {
		return
	}
	delete(f.m, id)
	own.rec = rec
	close(own.landed)
}

// seenSize bounds each of the two generations of a seen set: at most twice as many ids of 16 bytes, about 3 MB.
const seenSize = 1 << 15

// seen remembers keys that have a record, so that a replay can begin with a plain read. It is a hint: forgetting a key
// costs one round trip, and remembering one whose record is gone costs one as well.
type seen struct {
	mu       sync.Mutex
	now, old map[ID]struct{}
}

func (s *seen) add(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.now) >= seenSize {
		s.old, s.now = s.now, make(map[ID]struct{})
	}
	s.now[id] = struct{}{}
}

func (s *seen) has(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.now[id]; ok {
		return true
	}
	_, ok := s.old[id]
	return ok
}
