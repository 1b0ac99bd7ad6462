"""What changed since 2017: parts, and a language model made of them."""
