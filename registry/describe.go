package registry

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Description is what Build has built: for people, and as JSON for a file that a review compares.
type Description struct {
	// Store names the store of records, empty for none.
	Store string `json:"store,omitempty"`
	// Commands are the commands and queries, by name.
	Commands []CommandDescription `json:"commands"`
	// Warnings are what the store's check noticed and let pass.
	Warnings []string `json:"warnings,omitempty"`
}

// CommandDescription is one command or query as it is served.
type CommandDescription struct {
	Name string `json:"name"`
	// Kind is "command" or "query".
	Kind string `json:"kind"`
	// Type and Result are the Go types.
	Type   string `json:"type"`
	Result string `json:"result"`
	// Stages are those in force, in the order in which they run.
	Stages []string `json:"stages"`
	// Idempotency is nil for a command that is not protected.
	Idempotency *IdempotencyDescription `json:"idempotency,omitempty"`
	// Warnings are what Build noticed and let pass.
	Warnings []string `json:"warnings,omitempty"`
}

// IdempotencyDescription is how a command is protected. Durations are written as Go writes them.
type IdempotencyDescription struct {
	Mode        string `json:"mode"`
	Scope       string `json:"scope"`
	Key         string `json:"key"`
	Retention   string `json:"retention"`
	AfterExpiry string `json:"after_expiry"`
	Duplicate   string `json:"duplicate"`
	Deadline    string `json:"deadline"`
	Isolation   string `json:"isolation"`
	Version     int    `json:"version"`
	Strict      bool   `json:"strict"`
	// Results says what the record keeps of the result, and up to which size.
	Results string `json:"results"`
	// Lease, Takeover and MaxAttempts are set for Leased commands.
	Lease       string `json:"lease,omitempty"`
	Takeover    string `json:"takeover,omitempty"`
	MaxAttempts int    `json:"max_attempts,omitempty"`
	// Tuned names what [Tune] has changed of the type's own policy, by the fields of idempotency.Policy; nil for nothing.
	Tuned []string `json:"tuned,omitempty"`
}

// Describe says what was built. Before Build has succeeded it is empty.
func (r *Registry) Describe() Description {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desc
}

func describe(it item, p *parts) CommandDescription {
	d := CommandDescription{Name: it.name, Kind: "command", Type: it.goType.String(), Result: it.result.String(), Warnings: p.plan.Warnings}
	if it.query {
		d.Kind = "query"
	}
	stage := func(name string, n int) {
		if n > 0 {
			d.Stages = append(d.Stages, fmt.Sprintf("%s(%d)", name, n))
		}
	}
	d.Stages = append(d.Stages, "logging")
	stage("admit", len(p.cfg.Admit))
	d.Stages = append(d.Stages, "validation")
	stage("permit", len(p.cfg.Permit))
	if p.plan.Marked {
		d.Stages = append(d.Stages, "idempotency")
		d.Idempotency = protection(p.plan, p.cfg.RequireTenant)
	}
	stage("around", len(p.cfg.Around))
	d.Stages = append(d.Stages, "handler")
	return d
}

func protection(plan idempotency.Plan, requireTenant bool) *IdempotencyDescription {
	policy := plan.Policy
	d := &IdempotencyDescription{
		Mode: policy.Mode.String(), Scope: "client, tenant (may be empty), source, command, key", Key: "required",
		Retention: policy.Retention.String(), AfterExpiry: policy.AfterExpiry.String(), Deadline: policy.Deadline.String(),
		Duplicate: fmt.Sprintf("waits %v, then in progress", policy.Wait), Isolation: policy.Isolation.String(),
		Version: policy.Version, Strict: policy.Strict, Results: kept(policy), Tuned: plan.Tuned,
	}
	if requireTenant {
		d.Scope = "client, tenant, source, command, key"
	}
	if policy.KeyOptional {
		d.Key = "optional (unprotected without one)"
	}
	if policy.Wait == 0 {
		d.Duplicate = "in progress at once"
	}
	if policy.Mode == idempotency.Leased {
		d.Lease, d.Takeover, d.MaxAttempts = policy.Lease.String(), policy.Takeover.String(), policy.MaxAttempts
		if policy.Duplicate == idempotency.AnswerAccepted {
			d.Duplicate = strings.Replace(d.Duplicate, "in progress", "accepted", 1)
		}
		if policy.RelaxedClaim {
			d.Mode = "leased (relaxed claim)"
		}
	}
	return d
}

func kept(policy idempotency.Policy) string {
	switch {
	case policy.Results == idempotency.OmitResult:
		return policy.Results.String()
	case policy.ResultLimit < 0:
		return policy.Results.String() + ", of any size"
	}
	return fmt.Sprintf("%s up to %d bytes", policy.Results, policy.ResultLimit)
}

func (d *Description) sort() {
	sort.Slice(d.Commands, func(i, j int) bool { return d.Commands[i].Name < d.Commands[j].Name })
}

// String is the description as text, one command a paragraph.
func (d Description) String() string {
	var s strings.Builder
	if d.Store != "" {
		fmt.Fprintf(&s, "store: %s\n", d.Store)
	}
	for _, w := range d.Warnings {
		fmt.Fprintf(&s, "warning: %s\n", w)
	}
	for _, c := range d.Commands {
		fmt.Fprintf(&s, "%s %s (%s -> %s)\n  stages: %s\n", c.Kind, c.Name, c.Type, c.Result, strings.Join(c.Stages, " -> "))
		if i := c.Idempotency; i != nil {
			fmt.Fprintf(&s, "  idempotent: %s, key %s, scope %s\n  retention %s then %s; duplicate %s; deadline %s; %s; version %d; strict %t; results %s\n",
				i.Mode, i.Key, i.Scope, i.Retention, i.AfterExpiry, i.Duplicate, i.Deadline, i.Isolation, i.Version, i.Strict, i.Results)
			if i.Lease != "" {
				fmt.Fprintf(&s, "  lease %s, takeover %s, at most %d attempts\n", i.Lease, i.Takeover, i.MaxAttempts)
			}
			if i.Tuned != nil {
				fmt.Fprintf(&s, "  tuned for this deployment: %s\n", strings.Join(i.Tuned, ", "))
			}
		} else if c.Kind == "command" {
			s.WriteString("  not idempotent\n")
		}
		for _, w := range c.Warnings {
			fmt.Fprintf(&s, "  warning: %s\n", w)
		}
	}
	return s.String()
}

// JSON is the description as indented JSON, with a final newline. It does not change from build to build unless the pipeline does.
func (d Description) JSON() []byte {
	out, _ := json.MarshalIndent(d, "", "  ") // strings, numbers and booleans only: it cannot fail
	return append(out, '\n')
}
