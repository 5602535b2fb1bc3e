package message

type Message struct{ UUID string }

func NewMessage(id string, payload []byte) *Message { return nil }
