"""Language of a short text, by its script and, in Latin script, by its function words; None where unknown."""

from __future__ import annotations

import re
import unicodedata

FUNCTION_WORDS = {
    "en": "the a an of and or for to in on with my your is are was what how which that this it by from find get show",
    "de": "der die das ein eine einen und oder für zu im in den dem mit mein meine ist sind was wie nach von auf ich",
    "es": "el la los las un una y o para por en con mi es son qué cómo de del al una que me quiero buscar",
    "fr": "le la les un une et ou pour par dans avec mon ma mes est sont quel comment de du des au je que trouver",
    "it": "il lo la gli le un una e o per con mio mia è sono che come di del della nel mi vorrei trovare",
    "pt": "o a os as um uma e ou para por com meu minha é são que como de do da no na eu quero encontrar",
    "nl": "de het een en of voor naar in met mijn is zijn wat hoe van op ik dat deze te vinden",
}
_WORDS = {language: frozenset(words.split()) for language, words in FUNCTION_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")


def language(text: str) -> str | None:
    """A language by its function words, else the script; None for Latin script without function words."""
    words = [word.casefold() for word in _WORD.findall(text)]
    scripts = [_script(letter) for word in words for letter in word]
    if not scripts:
        return None
    script = max(sorted(set(scripts)), key=scripts.count)
    if script != "LATIN":
        return "CJK" if script in ("CJK", "HIRAGANA", "KATAKANA") else script
    votes = {name: sum(word in known for word in words) for name, known in _WORDS.items()}
    top = max(votes.values())
    best = [name for name, count in votes.items() if count == top]
    return best[0] if top and len(best) == 1 else None


def same_language(one: str, other: str) -> bool:
    """False only where both languages are known and differ, or only one text has Latin letters."""
    first, second = language(one), language(other)
    if first is None or second is None:
        known = first or second
        return known is None or known in _WORDS or not _WORD.search(other if first else one)
    return first == second


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0]
