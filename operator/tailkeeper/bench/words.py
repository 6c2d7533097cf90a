"""Text of a wanted length, made without a tokenizer: common short words, each one token to the usual vocabularies.

A request of n tokens is n words cut out of one long block that is made once: cutting costs a microsecond whatever n is,
so that the sender is not late because of it. Chat templates and special tokens of the model come on top.
"""

import random
from typing import Final

_TEXT: Final = """
    the of and to in is that it was for on are with as his they be at one have this from or had by hot but some what
    there we can out other were all your when up use word how said an each she which do their time if will way about
    many then them would write like so these her long make thing see him two has look more day could go come did my
    sound no most number who over know water than call first people may down side been now find any new work part take
    get place made live where after back little only round man year came show every good me give our under name very
    through just form much great think say help low line before turn cause same mean move right boy old too does tell
    set three want air well also play small end put home read hand port large add even land here must big high such
    follow act why ask men change went light kind off need house picture try us again animal point mother world near
    build self earth father head stand own page should country found answer school grow study still learn plant cover
    food sun four thought let keep eye never last door between city tree cross since hard start might story saw far sea
"""
_WORDS: Final = _TEXT.split()

_SPARE_WORDS: Final = 50_021
"""Where cuts may begin: prime, so that a stride over it meets every beginning before it repeats."""
_STRIDE: Final = 7_919


class Words:
    """A block of words from which texts of up to `longest_tokens` are cut; the seed decides the block."""

    def __init__(self, seed: int, longest_tokens: int) -> None:
        rng = random.Random(f"{seed}/words")
        words = rng.choices(_WORDS, k=_SPARE_WORDS + longest_tokens)
        self._begins = [0]
        for word in words:
            self._begins.append(self._begins[-1] + len(word) + 1)
        self._block = (" ".join(words) + " ").encode()

    def cut(self, index: int, tokens: int) -> bytes:
        """Return `tokens` words for request number `index`, other ones for its neighbours; fit for JSON."""
        first = index * _STRIDE % _SPARE_WORDS
        return self._block[self._begins[first] : self._begins[first + tokens] - 1]
