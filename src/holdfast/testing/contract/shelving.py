"""What shelves promise: a change is one, keys are in order of their bytes, and nobody meets another's items."""

import asyncio

from holdfast.core.ids import TENANT
from holdfast.store.protocol import Store
from holdfast.store.shelf import Arrangement, Item


def put(*items: tuple[bytes, bytes]) -> Arrangement:
    """Return a change that puts these items."""
    return Arrangement(put=[Item(*item) for item in items])


async def held(store: Store, shelf: str, prefix: bytes = b"", *, tenant: str = TENANT) -> dict[bytes, bytes]:
    """Return what a shelf holds, the last key first."""
    return {item.key: item.body for item in await store.shelves.items(tenant, shelf, prefix, limit=100)}


class ShelfContract:
    """Small ordered maps of bytes, kept beside runs."""

    async def test_items_come_in_the_order_of_their_bytes_the_last_one_first(self, store: Store) -> None:
        """No collation, no encoding: a key is bytes, zeros and high ones included."""
        keys = [b"a", b"a\x00", b"a\x00\xff", b"aB", b"aa", b"a\xff\xff", b"b"]
        await store.shelves.arrange(TENANT, "shelf", put(*((key, key * 2) for key in reversed(keys))))
        assert list((await held(store, "shelf")).items()) == [(key, key * 2) for key in reversed(keys)]
        assert list(await held(store, "shelf", b"a")) == keys[-2::-1]

    async def test_a_page_begins_below_where_it_was_left(self, store: Store) -> None:
        """Pages neither repeat nor leave out."""
        await store.shelves.arrange(TENANT, "shelf", put(*((b"k%d" % n, b"") for n in range(5))))
        first = await store.shelves.items(TENANT, "shelf", b"k", limit=2)
        rest = await store.shelves.items(TENANT, "shelf", b"k", before=first[-1].key, limit=9)
        assert [item.key for item in [*first, *rest]] == [b"k4", b"k3", b"k2", b"k1", b"k0"]

    async def test_what_is_put_replaces_and_what_is_added_does_not(self, store: Store) -> None:
        """The first of those who add wins; the last of those who put does."""
        await store.shelves.arrange(TENANT, "shelf", put((b"a", b"1"), (b"b", b"1")))
        later = Arrangement(put=[Item(b"a", b"2")], add=[Item(b"b", b"2"), Item(b"c", b"2")])
        assert await store.shelves.arrange(TENANT, "shelf", later)
        assert await held(store, "shelf") == {b"a": b"2", b"b": b"1", b"c": b"2"}

    async def test_a_change_drops_before_it_puts(self, store: Store) -> None:
        """What begins with one of the prefixes goes, and nothing else."""
        await store.shelves.arrange(TENANT, "shelf", put((b"a1", b""), (b"a2", b""), (b"b1", b""), (b"c1", b"")))
        await store.shelves.arrange(TENANT, "shelf", Arrangement(drop=[b"a", b"c1"], put=[Item(b"a2", b"new")]))
        assert await held(store, "shelf") == {b"a2": b"new", b"b1": b""}

    async def test_a_change_is_refused_whole_when_the_last_key_is_another(self, store: Store) -> None:
        """Whoever saw less than there is writes nothing."""
        shelves = store.shelves
        assert await shelves.arrange(TENANT, "shelf", Arrangement(last=(b"c", None), put=[Item(b"c1", b"")]))
        assert not await shelves.arrange(TENANT, "shelf", Arrangement(last=(b"c", None), put=[Item(b"c2", b"")]))
        late = Arrangement(last=(b"c", b"c0"), drop=[b"c"], put=[Item(b"x", b"")], add=[Item(b"y", b"")])
        assert not await shelves.arrange(TENANT, "shelf", late)
        assert await shelves.arrange(TENANT, "shelf", Arrangement(last=(b"c", b"c1"), put=[Item(b"c3", b"")]))
        assert await held(store, "shelf") == {b"c3": b"", b"c1": b""}

    async def test_a_change_is_refused_where_something_is_missing_or_has_come(self, store: Store) -> None:
        """Whoever builds on an item, or drops by what he saw, is told that it is not so any more."""
        shelves = store.shelves
        assert not await shelves.arrange(TENANT, "shelf", Arrangement(there=[b"a"], put=[Item(b"b", b"")]))
        assert await shelves.names(TENANT, "", limit=9) == []
        await shelves.arrange(TENANT, "shelf", put((b"a", b""), (b"b", b"")))
        assert await shelves.arrange(TENANT, "shelf", Arrangement(there=[b"a", b"b"], count=2, put=[Item(b"c", b"")]))
        assert not await shelves.arrange(TENANT, "shelf", Arrangement(count=2, drop=[b"a"]))
        assert not await shelves.arrange(TENANT, "shelf", Arrangement(there=[b"a", b"x"], drop=[b"a"]))
        assert list(await held(store, "shelf")) == [b"c", b"b", b"a"]

    async def test_of_two_who_saw_the_same_one_writes(self, store: Store) -> None:
        """The check and the write are one, however closely two follow each other."""
        await store.shelves.arrange(TENANT, "shelf", put((b"c0", b"")))
        rivals = (Arrangement(last=(b"c", b"c0"), put=[Item(b"c%d" % n, b"")]) for n in range(1, 9))
        taken = await asyncio.gather(*(store.shelves.arrange(TENANT, "shelf", rival) for rival in rivals))
        assert sorted(taken) == [False] * 7 + [True]
        assert len(await held(store, "shelf")) == 2

    async def test_a_change_that_stands_is_accepted_again(self, store: Store) -> None:
        """Who lost the answer asks again, and is not told that somebody else was faster."""
        change = Arrangement(last=(b"c", None), put=[Item(b"c1", b"same")])
        assert await store.shelves.arrange(TENANT, "shelf", change)
        assert await store.shelves.arrange(TENANT, "shelf", change)
        other = Arrangement(last=(b"c", None), put=[Item(b"c1", b"other")])
        assert not await store.shelves.arrange(TENANT, "shelf", other)

    async def test_shelves_are_listed_by_name_for_their_tenant(self, store: Store) -> None:
        """In order, by pages, and nobody else's."""
        for tenant, name in ((TENANT, "t/b"), (TENANT, "t/a"), (TENANT, "t/B"), (TENANT, "u"), ("other", "t/c")):
            await store.shelves.arrange(tenant, name, put((b"k", name.encode())))
        assert await store.shelves.names(TENANT, "t/", limit=2) == ["t/B", "t/a"]
        assert await store.shelves.names(TENANT, "t/", after="t/a", limit=2) == ["t/b"]
        assert await held(store, "t/c") == {}
        assert await held(store, "t/c", tenant="other") == {b"k": b"t/c"}

    async def test_a_copy_has_the_same_items_and_lives_by_itself(self, store: Store) -> None:
        """It is made once, and never over something else."""
        await store.shelves.arrange(TENANT, "one", put((b"a", b"1"), (b"b", b"2")))
        assert await store.shelves.copy(TENANT, "one", "two")
        assert await store.shelves.copy(TENANT, "one", "two")
        assert await held(store, "two") == {b"a": b"1", b"b": b"2"}
        await store.shelves.discard(TENANT, "one")
        assert await held(store, "two") == {b"a": b"1", b"b": b"2"}
        await store.shelves.arrange(TENANT, "one", put((b"a", b"other")))
        assert not await store.shelves.copy(TENANT, "one", "two")
        assert await store.shelves.copy(TENANT, "nowhere", "three")
        assert await store.shelves.names(TENANT, "", limit=9) == ["one", "two"]

    async def test_a_discarded_shelf_is_gone_and_may_begin_again(self, store: Store) -> None:
        """Nothing of it is left, and the others are not touched."""
        for name in ("one", "two"):
            await store.shelves.arrange(TENANT, name, put((b"a", name.encode())))
        await store.shelves.discard(TENANT, "one")
        await store.shelves.discard(TENANT, "one")
        assert await held(store, "one") == {}
        assert await held(store, "two") == {b"a": b"two"}
        await store.shelves.arrange(TENANT, "one", put((b"b", b"")))
        assert await held(store, "one") == {b"b": b""}
