"""Language models: which one a run uses, what it costs, and one call of it.

The seam is `base.Model`: a `Request` goes in, deltas and one `Completion` come out, and every failure is a `ModelError`
that says whether to retry and whether it may have been billed. `model_choice` chooses the model, `factory` builds it,
`prices` prices it, `wires` holds the formats that providers speak, and `errors.toml` says what their errors mean.
`offline` has two models without a network.

What must hold: one call of `stream` is one attempt, without hidden retries or redirects. A request's bytes depend only
on the request and on the parameters in the log. Everything stored of an answer is plain, finite JSON. A model whose
price nobody knows is refused.
"""
