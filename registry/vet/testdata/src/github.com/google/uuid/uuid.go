package uuid

type UUID [16]byte

func (UUID) String() string             { return "" }
func New() UUID                         { return UUID{} }
func NewString() string                 { return "" }
func NewV7() (UUID, error)              { return UUID{}, nil }
func Must(u UUID, err error) UUID       { return u }
func NewSHA1(space UUID, b []byte) UUID { return space }
