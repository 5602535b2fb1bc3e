package msgedge

type Message struct{ ID, Type string }
