"""Words that tell tools apart, and those that do not."""

from __future__ import annotations

import re

from retrievers.text import tokens


def word_set(words: str) -> frozenset[str]:
    """Words written as one line, as people read them."""
    return frozenset(words.split())


GENERIC = word_set(
    "api apis endpoint endpoints function functions method methods tool tools service services operation operations "
    "action actions resource resources object objects item items entity entities data info information detail details "
    "value values result results response responses request requests parameter parameters param params id ids name "
    "names type types key keys string number version get gets set sets list lists fetch fetches find search query "
    "post put patch delete create update add remove read write run call send check execute process handle do all new "
    "any some every default main root general generic simple basic misc other others test tests testing demo example "
    "examples sample samples temp tmp hello world foo bar baz asdf qwerty untitled unknown none null undefined status "
    "ping health"
)
"""Words a name may be made of without saying what the tool is about."""

FILLER = GENERIC | word_set(
    "return returns returned returning retrieve retrieves provide provides allow allows give gives given use used uses "
    "using show shows from via about based following specific specified certain here has have which what when where "
    "its also only etc description documentation todo tbd na n"
)
"""Words a description may be made of without saying anything."""


def informative(text: str) -> set[str]:
    """The distinct words of a text that can tell one tool from another; plurals count as their singular."""
    return {singular(word) for word in tokens(text) if word not in FILLER and not word.isdigit()}


def singular(word: str) -> str:
    """Crude on purpose: only for comparing words with each other, never shown or indexed."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


_ACRONYMS = word_set(
    "ai ar bmi btc css csv db dns dvd eth fx gps gpt gpu html http https hr ip jpg js json jwt kyc llm md ml mlb mp3 "
    "mp4 mtg nba nfl nft nhl npm ocr pc pdf php png qr rgb rpc rss sdk seo sms smtp sql ssh ssl svg tls tts tv uk url "
    "us uv vat vin vpn vr wp xls xml yml"
)
_LETTERS = re.compile(r"[^\W\d_]+")
_VOWELS = frozenset("aeiouy")


def speakable(word: str) -> bool:
    """Whether a user might say this word: three letters with a vowel, a well-known acronym, or another script."""
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
