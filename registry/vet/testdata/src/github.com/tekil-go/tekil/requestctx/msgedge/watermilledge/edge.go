package watermilledge

type Out struct {
	Type, ID string
	Body     any
}
