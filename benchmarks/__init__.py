"""The package measured beside torch.nn.Transformer, Hugging Face Marian and CTranslate2: `make bench`."""
