"""As much of a text as it takes to know its first tokens. A model reads a few hundred or thousand of them, a body may
hold megabytes, and tokenizing 1 MB takes seconds (3.8 s for words on one core)."""

from collections.abc import Iterator

CHARACTERS_PER_TOKEN = (8, 64, 512)
"""Prose has 4 to 5, blanks and words that are in no vocabulary have any number. After the last of these the rest of the
text is given up: reading 512 characters for each token that the model takes is enough."""


def heads(text: str, tokens: int) -> Iterator[str]:
    """Ever longer heads of a text, to be tokenized until one gives more than so many tokens; the last is the whole text
    where that is not too long. They end between words, so that their tokens are those of the whole text."""
    for each in CHARACTERS_PER_TOKEN:
        most = tokens * each
        if len(text) <= most:
            yield text
            return
        yield _between_words(text[:most])


def _between_words(head: str) -> str:
    parts = head.rsplit(None, 1)
    return parts[0] if len(parts) == 2 else head
