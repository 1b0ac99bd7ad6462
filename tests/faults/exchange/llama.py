"""Mistakes in `transformer.exchange.llama`."""

from faults import Fault

FAULTS = [
    Fault(
        "gemma-in-half",
        "the norms of Gemma get their 1 in half precision",
        "_from_llama",
        "value.to(wide) + 1",
        "value + 1",
    ),
    Fault(
        "one-gelu-for-all",
        "every family reads gelu as Gemma does",
        "_config_from_llama",
        'family == "gemma" and activation',
        "activation",
    ),
    Fault(
        "base-ignored",
        "every model turns at the speeds of 2021",
        "_config_from_llama",
        'rotary.get("rope_theta", theirs.get("rope_theta"))',
        "None",
    ),
    Fault(
        "prompts-without-their-end",
        "what a speaker adds is given without what it was asked to continue",
        "Speaker.speak",
        "torch.cat([begun, added], dim=1)",
        "added",
    ),
    Fault(
        "one-of-several-ends",
        "of several tokens that end a text, the first alone does",
        "Speaker.speak",
        "torch.isin(tokens, ends)",
        "torch.isin(tokens, ends[:1])",
    ),
]
