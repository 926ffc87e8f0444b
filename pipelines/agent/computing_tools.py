"""Tools of the sample whose results are computed from their arguments."""

from __future__ import annotations

from typing import Any

EUROS = {"EUR": 1.0, "USD": 1.08, "GBP": 0.86, "SEK": 11.4, "NOK": 11.6, "JPY": 162.0, "CHF": 0.96, "PLN": 4.3}
"""Fixed exchange rates of one euro."""
METS = {"running": 9.8, "cycling": 7.5, "swimming": 8.0, "walking": 3.5, "yoga": 2.5, "rowing": 7.0, "hiking": 6.0}
VAT = {
    "germany": (19, 7),
    "france": (20, 5.5),
    "spain": (21, 4),
    "ireland": (23, 0),
    "sweden": (25, 6),
    "italy": (22, 4),
}
KCAL = {"banana": 89, "rice": 130, "lentils": 116, "oats": 389, "salmon": 208, "almonds": 579, "tofu": 76, "bread": 265}
COORDINATES = {
    "lisbon": (38.72, -9.14),
    "athens": (37.98, 23.73),
    "oslo": (59.91, 10.75),
    "vienna": (48.21, 16.37),
    "porto": (41.15, -8.61),
    "ghent": (51.05, 3.72),
    "turin": (45.07, 7.69),
    "leeds": (53.8, -1.55),
    "krakow": (50.06, 19.94),
}
POISONOUS = {"chocolate", "grapes", "onion", "lily", "xylitol", "avocado", "garlic"}


def convert(arguments: dict[str, Any]) -> dict[str, Any]:
    """larkchange/convertCurrency"""
    source, target = (str(arguments[name]).upper() for name in ("from", "to"))
    if source not in EUROS or target not in EUROS:
        return {"error": f"unknown currency {source if source not in EUROS else target}"}
    rate = EUROS[target] / EUROS[source]
    return {"rate": round(rate, 4), "amount": round(rate * arguments.get("amount", 1), 2), "currency": target}


def fx_quote(arguments: dict[str, Any]) -> dict[str, Any]:
    """pennywharf/fx_quote: a purchase costs 1.5 % on top, cash 2.5 %."""
    currency = str(arguments["currency"]).upper()
    if currency not in EUROS:
        return {"error": f"unknown currency {currency}"}
    fee = 0.025 if arguments.get("kind") == "cash" else 0.015
    plain = arguments["amount"] / EUROS[currency]
    return {"charged_eur": round(plain * (1 + fee), 2), "fee_eur": round(plain * fee, 2)}


def mortgage(arguments: dict[str, Any]) -> dict[str, Any]:
    """hearthlot/mortgage: an annuity at 3.6 % per year."""
    loan, months, rate = arguments["price"] - arguments["deposit"], 12 * arguments.get("years", 25), 0.036 / 12
    monthly = loan * rate / (1 - (1 + rate) ** -months)
    return {"monthly": round(monthly, 2), "interest": round(monthly * months - loan, 2), "rate_percent": 3.6}


def burn(arguments: dict[str, Any]) -> dict[str, Any]:
    """vitalore/burn: metabolic equivalents times weight times hours."""
    met = METS.get(str(arguments["activity"]).casefold(), 5.0)
    return {"kcal": round(met * arguments.get("kg", 70) * arguments["minutes"] / 60)}


def vat(arguments: dict[str, Any]) -> dict[str, Any]:
    """pennywharf/vat_rates"""
    standard, reduced = VAT.get(str(arguments["country"]).casefold(), (20, 10))
    low = str(arguments.get("goods", "")).casefold() in ("books", "food")
    return {"percent": reduced if low else standard}


def income_tax(arguments: dict[str, Any]) -> dict[str, Any]:
    """pennywharf/estimate_income_tax: nothing up to 12,000, then a quarter, above 50,000 two fifths."""
    gross = arguments["gross"]
    tax = 0.25 * max(0, min(gross, 50_000) - 12_000) + 0.4 * max(0, gross - 50_000)
    tax = max(0.0, tax - 600 * arguments.get("children", 0))
    return {"tax": round(tax), "net": round(gross - tax)}


def iban(arguments: dict[str, Any]) -> dict[str, Any]:
    """pennywharf/check_iban: the remainder of 97."""
    text = "".join(str(arguments["iban"]).upper().split())
    moved = text[4:] + text[:4]
    digits = "".join(str(int(sign, 36)) for sign in moved if sign.isalnum() and sign.isascii())
    valid = len(text) >= 15 and text.isalnum() and text.isascii() and int(digits or "0") % 97 == 1
    return {"valid": valid, "country": text[:2]}


def nutrition(arguments: dict[str, Any]) -> dict[str, Any]:
    """larderly/getNutritionFacts"""
    per = KCAL.get(str(arguments["food"]).casefold())
    return {"error": "unknown food"} if per is None else {"kcal": round(per * arguments.get("grams", 100) / 100)}


def pet_safe(arguments: dict[str, Any]) -> dict[str, Any]:
    """porchlight/pet-safe-check"""
    bad = str(arguments["substance"]).casefold() in POISONOUS
    return {"poisonous": bad, "advice": "call a vet now" if bad else "no need to worry"}


def geo(arguments: dict[str, Any]) -> dict[str, Any]:
    """kettlemap/geo"""
    position = COORDINATES.get(str(arguments["q"]).casefold())
    return {"error": "no such place"} if position is None else {"lat": position[0], "lon": position[1]}


FUNCTIONS = {
    "larkchange/convertCurrency": convert,
    "pennywharf/fx_quote": fx_quote,
    "hearthlot/mortgage": mortgage,
    "vitalore/burn": burn,
    "pennywharf/vat_rates": vat,
    "pennywharf/estimate_income_tax": income_tax,
    "pennywharf/check_iban": iban,
    "larderly/getNutritionFacts": nutrition,
    "porchlight/pet-safe-check": pet_safe,
    "kettlemap/geo": geo,
}
