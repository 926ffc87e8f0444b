"""Words that distinguish tools, and those that do not."""

from __future__ import annotations

import re

from retrievers.text import tokens

# In a name they say too little (`create`), in a description they distinguish tools.
_ACTIONS = frozenset(
    """add call check create delete execute patch post process put read remove run send update write""".split()
)
GENERIC = _ACTIONS | frozenset(
    """api apis endpoint endpoints function functions method methods tool tools service services operation operations
    action actions resource resources object objects item items entity entities data info information detail details
    value values result results response responses request requests parameter parameters param params id ids name
    names type types key keys string number version get gets set sets list lists fetch fetches find search query
    handle do all new any some every default main root general generic simple basic misc other others test tests
    testing demo example examples sample samples temp tmp hello world foo bar baz asdf qwerty untitled unknown none
    null undefined status ping health""".split()
)
"""Words a name may be made of without saying what the tool is about."""

_PHRASES = """return returned returning retrieve provide allow give given use used using show via based following
    specific specified certain etc description documentation todo tbd na n"""
# As `tokens` gives them, so that its way of folding plurals is known in one place.
FILLER = frozenset(tokens(f"{' '.join(sorted(GENERIC - _ACTIONS))} {_PHRASES}"))
"""Words a description may be made of without saying anything."""

MAX_CHARACTERS = 1000  # characters of a description that are checked; reading whole manuals takes minutes


def informative(text: str) -> set[str]:
    """Distinct words of a text that can distinguish tools."""
    return {word for word in tokens(text) if word not in FILLER and not word.isdigit()}


_ACRONYMS = frozenset(
    """ai ar bmi btc css csv db dns dvd eth fx gps gpt gpu html http https hr ip jpg js json jwt kyc llm md ml mlb
    mp3 mp4 mtg nba nfl nft nhl npm ocr pc pdf php png qr rgb rpc rss sdk seo sms smtp sql ssh ssl svg tls tts
    tv uk url us uv vat vin vpn vr wp xls xml yml""".split()
)
_LETTERS = re.compile(r"[^\W\d_]+")
_VOWELS = frozenset("aeiouy")


def speakable(word: str) -> bool:
    """True for a word a user might say: three letters with a vowel, a well-known acronym, or another script."""
    folded = word.casefold()
    if folded in _ACRONYMS:
        return True
    run = max(_LETTERS.findall(folded), key=len, default="")
    if not run.isascii():
        return True
    return len(run) >= 3 and not _VOWELS.isdisjoint(run)


def bare(word: str) -> str:
    """A word without the digits around it: `endpoint1` and `v2test` say no more than `endpoint` and `test`."""
    return word.casefold().strip("0123456789")
