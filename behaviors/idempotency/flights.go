package idempotency

import (
	"context"
	"sync"
	"time"
)

// flights lets one dispatch of a key at a time past, in this process. It decides nothing, the store does; it spares the
// duplicates a database connection each, which would otherwise starve everybody else's commands.
type flights struct {
	mu sync.Mutex
	m  map[ID]chan struct{}
}

// enter waits, at most until the timer fires or ctx ends, until no other dispatch of the key is under way. It reports
// whether the caller is now the one, who must call leave. A nil timer means not to wait.
func (f *flights) enter(ctx context.Context, id ID, timer *time.Timer) bool {
	for {
		f.mu.Lock()
		busy, ok := f.m[id]
		if !ok {
			f.m[id] = make(chan struct{})
			f.mu.Unlock()
			return true
		}
		f.mu.Unlock()
		if timer == nil {
			return false
		}
		select {
		case <-busy:
		case <-timer.C:
			timer.Reset(0) // it stays fired for whoever looks next
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (f *flights) leave(id ID) {
	f.mu.Lock()
	busy := f.m[id]
	delete(f.m, id)
	f.mu.Unlock()
	close(busy)
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
