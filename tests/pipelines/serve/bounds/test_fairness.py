"""Turns of callers: slots, batches, and the part that one may take while others are active."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence

import pytest
from waiting import PATIENCE, Clock

from pipelines.serve.batcher import Batcher
from pipelines.serve.bounds.fairness import (
    ACTIVE_SECONDS,
    ActiveCallers,
    FairSlots,
    at_end,
    current_caller,
    grow_turn,
    outside,
)
from pipelines.serve.errors import Refusal
from pipelines.serve.http.guard import FREE_ERRORS, ErrorBudget
from pipelines.serve.keys import Caller


def test_a_lone_caller_has_everything_until_another_comes() -> None:
    clock = Clock()
    active = ActiveCallers(clock)
    active.note("one")
    assert active.share("one", 32) == 32
    active.note("two")
    assert (active.share("one", 32), active.share("two", 2)) == (8, 1)
    active.note("one")
    assert active.share("one", 32) == 8
    clock.now += ACTIVE_SECONDS + 1
    active.note("one")
    assert active.share("one", 32) == 32


def test_slots_go_round_and_a_flood_leaves_some_free() -> None:
    async def main() -> list[str]:
        slots, order = FairSlots(4), list[str]()

        async def request(name: str) -> None:
            async with slots.turn(name, PATIENCE):
                order.append(current_caller())
                await asyncio.sleep(0.02)

        flood = [asyncio.create_task(request("flood")) for _ in range(30)]
        await asyncio.sleep(0)
        await asyncio.gather(*flood, *(request(f"polite {number}") for number in range(3)))
        return order

    order = asyncio.run(main())
    assert order[:4] == ["flood"] * 4  # it was alone
    assert set(order[4:8]) == {"flood", "polite 0", "polite 1", "polite 2"}
    assert current_caller() == ""


def test_a_first_request_does_not_wait_for_a_flood_that_was_alone() -> None:
    async def main() -> None:
        slots = FairSlots(2, first_at_once=True)
        for _ in range(2):
            await slots.enter("flood", PATIENCE)
        slots.take("flood", 10)  # costly ones
        await slots.enter("polite", 0.01)
        for caller in ("flood", "polite", "third"):  # its second request waits, and a third caller of two slots
            with pytest.raises(Refusal):
                await slots.enter(caller, 0.01)
        slots.leave("polite")
        await slots.enter("third", 0.01)

    asyncio.run(main())


def test_a_flood_rests_as_long_as_it_ran_while_others_are_active() -> None:
    async def main() -> list[float]:
        slots, taken = FairSlots(1), list[float]()
        loop = asyncio.get_running_loop()
        slots.active.note("polite")

        async def request() -> None:
            async with slots.turn("flood", PATIENCE):
                taken.append(loop.time())
                await asyncio.sleep(0.03)

        await asyncio.gather(*(request() for _ in range(3)))
        return [later - earlier for earlier, later in itertools.pairwise(taken)]

    assert min(asyncio.run(main())) > 0.055


def test_a_request_that_waits_too_long_is_refused_with_a_time() -> None:
    async def main() -> Refusal:
        slots = FairSlots(1)
        async with slots.turn("one", PATIENCE):
            with pytest.raises(Refusal) as caught:
                await slots.enter("one", 0.01)
            assert slots.num_waiting("one") == 0
        await slots.enter("one", 0.01)  # the slot is free again
        return caught.value

    refusal = asyncio.run(main())
    assert (refusal.status, refusal.retry_after) == (429, 0.01)
    assert refusal.message == "1 requests of one are running and 0 wait; try again later"


def test_a_slot_is_lent_while_its_request_waits_outside_and_a_costly_one_takes_several() -> None:
    async def main() -> list[str]:
        slots, ended = FairSlots(2), list[str]()
        async with slots.turn("one", PATIENCE) as turn:
            grow_turn(2)
            at_end(lambda: ended.append("one"))
            with pytest.raises(Refusal):
                await slots.enter("one", 0.01)
            with outside(), outside():
                async with slots.turn("one", 0.01), slots.turn("one", 0.01):
                    pass
            with pytest.raises(Refusal):
                await slots.enter("one", 0.01)
            turn.end()
            turn.end()
            await slots.enter("one", 0.01)
            await slots.enter("one", 0.01)
            assert ended == []
        with pytest.raises(Refusal):
            await slots.enter("one", 0.01)
        return ended

    assert asyncio.run(main()) == ["one"]
    with outside():  # outside of requests nothing is lent
        grow_turn(3)


def test_a_cancelled_request_leaves_no_slot_taken() -> None:
    async def main() -> FairSlots:
        slots = FairSlots(1)
        await slots.enter("one", PATIENCE)
        waiting = asyncio.create_task(slots.enter("two", PATIENCE))
        granted = asyncio.create_task(slots.enter("three", PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        slots.leave("one")  # grants the slot to the third, which is cancelled before it runs
        granted.cancel()
        await asyncio.gather(waiting, granted, return_exceptions=True)
        await slots.enter("four", 0.01)
        return slots

    slots = asyncio.run(main())
    assert [slots.num_waiting(caller) for caller in ("one", "two", "three", "four")] == [0, 0, 0, 0]


def test_the_batches_of_a_flood_are_small_and_leave_a_thread_to_others() -> None:
    batches: list[list[str]] = []
    running, most = list[str](), list[int]()
    begun, go = threading.Event(), threading.Event()

    def work(_: int, texts: Sequence[str]) -> list[str]:
        batches.append(list(texts))
        running.append("flood" if any(text.startswith("flood") for text in texts) else "other")
        begun.set()
        go.wait(PATIENCE)
        most.append(running.count("flood"))
        running.remove("flood" if any(text.startswith("flood") for text in texts) else "other")
        return [text.upper() for text in texts]

    async def main() -> None:
        batcher = Batcher(work, 2, 16, 4000)
        slots = FairSlots(1000)

        async def run(name: str, number: int) -> list[str]:
            async with slots.turn(name, PATIENCE):
                return await batcher.run(1, [f"{name} {number}"])

        flood = [asyncio.create_task(run("flood", number)) for number in range(60)]
        await asyncio.to_thread(begun.wait, PATIENCE)
        polite = [asyncio.create_task(run("polite", number)) for number in range(2)]
        await asyncio.sleep(0.05)
        go.set()
        assert await asyncio.gather(*polite) == [["POLITE 0"], ["POLITE 1"]]
        await asyncio.gather(*flood)
        batcher.close()
        assert max(index for index, texts in enumerate(batches) if any("polite" in text for text in texts)) < 4
        assert sum(map(len, batches)) == 62
        assert batcher.waiting == 0

    asyncio.run(main())
    assert max(len(batch) for batch in batches if "polite 0" in batch or "polite 1" in batch) <= 2
    assert max(map(len, batches[4:])) <= 4
    assert max(most[4:]) == 1


def test_a_flood_of_waiting_items_leaves_room_for_others() -> None:
    go = threading.Event()

    def work(_: int, texts: Sequence[int]) -> list[int]:
        go.wait(PATIENCE)
        return list(texts)

    async def main() -> None:
        batcher, slots = Batcher(work, 1, 1, 8), FairSlots(1000)

        async def run(name: str) -> int:
            async with slots.turn(name, PATIENCE):
                return (await batcher.run(1, [1]))[0]

        flood = [asyncio.create_task(run("flood")) for _ in range(9)]
        await asyncio.sleep(0.01)
        with pytest.raises(Refusal):
            await run("flood")
        polite = asyncio.create_task(run("polite"))
        await asyncio.sleep(0.01)
        go.set()
        assert await polite == 1
        assert await asyncio.gather(*flood) == [1] * 9

    asyncio.run(main())


def test_a_key_has_a_share_of_the_bytes_that_are_on_their_way() -> None:
    async def main() -> None:
        slots, caller = FairSlots(10), Caller("one", frozenset({"search"}))
        async with slots.turn("one", PATIENCE):
            caller.reserve(5000, 4000)  # a lone answer is not refused
            async with slots.turn("one", PATIENCE):
                with pytest.raises(Refusal, match=r"answers of 5,000 bytes are on their way to one, and 0 more"):
                    caller.reserve(10, 4000)
        caller.reserve(10, 4000)

    asyncio.run(main())


def test_errors_have_no_consequence_until_there_are_many() -> None:
    clock = Clock()
    errors = ErrorBudget(clock)
    assert not any(errors.is_spent("one") for _ in range(int(FREE_ERRORS)))
    assert errors.is_spent("one")
    assert not errors.is_spent("two")
    clock.now += 1
    assert not errors.is_spent("one")
