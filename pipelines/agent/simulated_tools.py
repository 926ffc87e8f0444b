"""The sample's tools as pure functions: arguments in, a result out, always the same, without side effects.

Results are computed where possible (computing_tools.py) and otherwise drawn from a hash of the call. A tool without an
entry here confirms the call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pipelines.agent.computing_tools import FUNCTIONS
from retrievers.types import Tool

T = TypeVar("T")
Result = dict[str, Any]
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "date": (str,),
    "datetime": (str,),
    "file": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class HashedValues:
    """Values drawn from a hash of tool and arguments, the same for the same call everywhere."""

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self._seed, self._count = f"{tool}/{json.dumps(arguments, sort_keys=True)}", 0

    def whole(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        return low + int.from_bytes(digest[:6], "big") % (high - low + 1)

    def tenths(self, low: int, high: int) -> float:
        return self.whole(10 * low, 10 * high) / 10

    def pick(self, *choices: T) -> T:
        return choices[self.whole(0, len(choices) - 1)]

    def clock(self, first: int = 6, last: int = 22) -> str:
        return f"{self.whole(first, last):02}:{self.pick('05', '10', '20', '30', '45', '55')}"

    def code(self, letters: str) -> str:
        return f"{letters}-{self.whole(1000, 9999)}"


RESULTS: dict[str, Callable[[dict[str, Any], HashedValues], Result]] = {
    "nimbus_ledger/v2/conditions/now": lambda a, d: {
        "sky": d.pick("clear", "cloudy", "rain", "snow"),
        "celsius": d.whole(-4, 33),
    },
    "nimbus_ledger/v2/astro/sun": lambda a, d: {"sunrise": d.clock(5, 8), "sunset": d.clock(16, 21)},
    "nimbus_ledger/v2/forecast/hourly": lambda a, d: {"next_hours": [d.pick("dry", "showers", "rain") for _ in "1234"]},
    "nimbus_ledger/v2/air": lambda a, d: {"aqi": d.whole(10, 160)},
    "wayfarer_desk/ten-day-weather": lambda a, d: {"outlook": d.pick("mostly sunny", "mixed", "wet"), "pack": "a coat"},
    "wayfarer_desk/hotel-search": lambda a, d: {"hotel_id": d.code("H"), "price": d.whole(60, 220)},
    "wayfarer_desk/hotel-reviews": lambda a, d: {"score": d.tenths(6, 9), "noise": d.pick("quiet", "street noise")},
    "wayfarer_desk/visa-check": lambda a, d: {"needed": d.pick(True, False), "days": d.pick(30, 60, 90)},
    "wayfarer_desk/travel-advice": lambda a, d: {"level": d.pick("low", "medium", "high")},
    "skyfernet/searchFlights": lambda a, d: {"flight": d.code("SF"), "fare": d.whole(49, 420), "stops": d.whole(0, 1)},
    "skyfernet/getFlightStatus": lambda a, d: {"delay_minutes": d.pick(0, 0, 15, 40, 95), "gate": d.code("G")},
    "skyfernet/getBaggageRules": lambda a, d: {"cabin_kg": d.pick(7, 8, 10), "checked_kg": d.pick(20, 23)},
    "raillark/find_connection": lambda a, d: {
        "connection_id": d.code("C"),
        "departs": d.clock(),
        "changes": d.whole(0, 2),
    },
    "raillark/quote_fare": lambda a, d: {"price": d.whole(12, 140)},
    "raillark/reserve_seat": lambda a, d: {"reserved": True, "seat": d.code("S")},
    "raillark/train_running_info": lambda a, d: {"late_minutes": d.pick(0, 3, 12, 25)},
    "forkway/find_restaurants": lambda a, d: {"restaurant_id": d.code("R"), "rating": d.tenths(3, 5)},
    "forkway/get_menu": lambda a, d: {
        "dish": d.pick("ramen", "risotto", "bibimbap", "moussaka"),
        "price": d.whole(9, 24),
    },
    "forkway/book_table": lambda a, d: {"booked": True, "reference": d.code("B")},
    "kettlemap/route": lambda a, d: {"minutes": d.whole(6, 190), "km": d.whole(2, 210)},
    "kettlemap/charge": lambda a, d: {"free": d.whole(0, 5), "kw": d.pick(22, 50, 150)},
    "kettlemap/park": lambda a, d: {"car_park": d.code("P"), "per_hour": d.tenths(1, 5)},
    "tickervale/v2/search": lambda a, d: {"symbol": "".join(sign for sign in a["q"].upper() if sign.isalpha())[:4]},
    "tickervale/v2/quotes/latest": lambda a, d: {"price": d.tenths(8, 320), "change_percent": d.tenths(-4, 4)},
    "tickervale/v2/alerts/create": lambda a, d: {"alert_id": d.code("A")},
    "larkchange/getCoinPrice": lambda a, d: {"price": d.whole(1, 64_000)},
    "pennywharf/get_balance": lambda a, d: {"available": d.whole(120, 9000)},
    "pennywharf/send_payment": lambda a, d: {"sent": True, "reference": d.code("PAY")},
    "pennywharf/freeze_card": lambda a, d: {"frozen": a["frozen"]},
    "basketfox/track-parcel": lambda a, d: {"state": d.pick("in transit", "out for delivery", "delivered")},
    "basketfox/product-search": lambda a, d: {"product": d.code("X"), "price": d.whole(15, 600)},
    "basketfox/price-history": lambda a, d: {"lowest": d.whole(10, 400), "hint": d.pick("buy now", "wait")},
    "larderly/searchRecipes": lambda a, d: {"recipeId": d.code("RC"), "minutes": d.whole(15, 90)},
    "larderly/getRecipeDetails": lambda a, d: {"steps": d.whole(4, 11), "ingredients": d.whole(5, 14)},
    "larderly/suggestSubstitution": lambda a, d: {"use": d.pick("oat milk", "ground flax", "lemon juice", "cornflour")},
    "reelharbor/searchTitles": lambda a, d: {"titleId": d.code("T"), "year": d.whole(1958, 2025)},
    "reelharbor/getTitleDetails": lambda a, d: {"minutes": d.whole(82, 170), "rating": d.tenths(4, 9)},
    "reelharbor/whereToWatch": lambda a, d: {"service": d.pick("Streamle", "Kinobox", "rental only")},
    "tunesmithy/find_lyrics": lambda a, d: {"found": True, "lines": d.whole(18, 60)},
    "tunesmithy/artist_tour_dates": lambda a, d: {"city": d.pick("Utrecht", "Lyon", "Cork"), "date": "2027-03-14"},
    "vitalore/pharm": lambda a, d: {
        "name": d.pick("Mill Pharmacy", "Old Town Pharmacy"),
        "open_until": d.clock(18, 22),
    },
    "vitalore/lookup2": lambda a, d: {"dose": d.pick("one tablet", "two tablets"), "times_a_day": d.whole(1, 3)},
    "huddlo/post": lambda a, d: {"posted": True},
    "huddlo/remind": lambda a, d: {"reminder": d.code("M")},
    "huddlo/translate": lambda a, d: {"text": f"[{a['to']}] {a['text']}"},
    "quillbox/searchMail": lambda a, d: {"threadId": d.code("TH"), "messages": d.whole(1, 14)},
    "quillbox/summarizeThread": lambda a, d: {"decided": d.pick("to postpone", "to go ahead", "nothing yet")},
    "quillbox/createCalendarEvent": lambda a, d: {"eventId": d.code("E")},
    "forgeline/v1/issues/create": lambda a, d: {"key": d.code("ISS")},
    "forgeline/v1/pipelines/latest": lambda a, d: {"result": d.pick("passed", "failed"), "failing": d.whole(0, 4)},
    "forgeline/v1/pipelines/run": lambda a, d: {"run": d.code("RUN")},
    "hearthlink/v1/devices/list": lambda a, d: {"device_id": d.code("D"), "state": d.pick("on", "off")},
    "hearthlink/v1/devices/command": lambda a, d: {"done": True},
    "hearthlink/v1/climate/setpoint": lambda a, d: {"target": a.get("celsius", 20)},
    "inkwell_commons/v1/books/search": lambda a, d: {
        "title": d.pick("The Salt Road", "Low Water"),
        "year": d.whole(1931, 2024),
    },
    "inkwell_commons/v1/libraries/availability": lambda a, d: {"on_shelf": d.pick(True, False)},
    "inkwell_commons/v1/words/define": lambda a, d: {"senses": d.whole(1, 6)},
    "porchlight/find-tradesperson": lambda a, d: {
        "name": d.pick("Adeyemi & Sons", "Quick Spanner"),
        "free": d.clock(8, 17),
    },
    "porchlight/pollen-outlook": lambda a, d: {"birch": d.whole(0, 5), "grass": d.whole(0, 5)},
    "kestrel_business/get_leave_balance": lambda a, d: {"vacation_days": d.whole(2, 25)},
    "kestrel_business/request_time_off": lambda a, d: {"request": d.code("L"), "state": "pending"},
    "kestrel_business/find_contact": lambda a, d: {
        "contact_id": d.code("K"),
        "company": d.pick("Brightwater", "Otter Ltd"),
    },
    "kestrel_business/log_activity": lambda a, d: {"logged": True},
}


def run_tool(tool: Tool, arguments: Mapping[str, Any]) -> Result:
    """Result of a call; a wrong call returns an `error`."""
    given = dict(arguments)
    known = {parameter.name: parameter for parameter in tool.parameters}
    for name in given:
        if name not in known:
            return {"error": f"unknown argument {name}"}
    for name, parameter in known.items():
        if parameter.required and name not in given:
            return {"error": f"missing argument {name}"}
        if name in given and not _has_type(given[name], parameter.type):
            return {"error": f"{name} must be of type {parameter.type}"}
    if tool.id in FUNCTIONS:
        try:
            return FUNCTIONS[tool.id](given)
        except (ArithmeticError, ValueError):  # a loan over no years, an infinite walk
            return {"error": "these numbers cannot be computed with"}
    values = HashedValues(tool.id, given)
    if tool.id in RESULTS:
        return RESULTS[tool.id](given, values)
    return {"status": "ok", "reference": values.code("OK")}


def _has_type(value: Any, kind: str) -> bool:
    types = TYPES.get(kind)
    return types is None or (isinstance(value, types) and (kind == "boolean" or not isinstance(value, bool)))
