package main

import (
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

// newBus is the whole wiring: which function serves which command.
func newBus(kept store, records idempotency.Store, logger *zap.Logger, s settings, observers ...bus.Observer) (*bus.Bus, error) {
	service := inbound{kept, s.holdDemo}
	reg := registry.New(registry.Config{Logger: logger, Store: records, RequireTenant: true, Observers: observers})
	if s.enabled {
		registry.Handle(reg, service.importOrders, registry.Tune[Import, Imported](s.protect))
	} else {
		registry.Handle(reg, service.importAsNew)
	}
	registry.HandleQuery(reg, service.list)
	return reg.Build()
}

// protect is what the environment says about the protection of an import.
func (s settings) protect(p *idempotency.Policy) {
	p.Retention, p.Lease, p.KeyOptional = s.retention, s.lease, !s.required
}
