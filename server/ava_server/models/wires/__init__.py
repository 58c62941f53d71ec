"""The formats that providers speak: one module each for requests and answers, and the stream that carries answers."""
