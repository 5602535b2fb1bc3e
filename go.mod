module github.com/tekil-go/tekil

go 1.26
