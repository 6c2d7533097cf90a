"""What the operator believes about the cluster (case O3: objects deleted while no watch was up)."""

from tailkeeper.reconcile.kinds import DEPLOYMENT, POD, POLICY
from tailkeeper.reconcile.store import Key, Store

CHAT = Key("team", "chat")


def names(store: Store) -> list[str]:
    return [item["metadata"]["name"] for item in store.of_policy(POD, CHAT)]


def test_the_newest_version_wins_whatever_comes_first(make_live) -> None:
    store = Store()
    assert store.put(POD, make_live(version=9, annotations={"a": "new"}))
    assert not store.put(POD, make_live(version=8, annotations={"a": "old"}))
    assert not store.put(POD, make_live(version=9))
    assert store.put(POD, make_live(version=10))


def test_a_list_prunes_what_was_deleted_unseen_and_says_for_whom_it_is_news(make_live) -> None:
    store = Store()
    for name in ("one", "two"):
        store.put(POD, make_live(name=name, version=3))
    assert store.replace(POD, None, [make_live(name="one", version=3)], "50") == {CHAT}
    assert names(store) == ["one"]
    assert store.replace(POD, None, [make_live(name="one", version=3)], "60") == set()


def test_a_list_that_is_older_than_what_a_watch_said_takes_nothing_back(make_live) -> None:
    store = Store()
    store.put(POD, make_live(name="born-after-the-list", version=55))
    store.put(POD, make_live(name="died-after-the-list", version=40))
    store.remove(POD, make_live(name="died-after-the-list", version=56))
    store.replace(POD, None, [make_live(name="died-after-the-list", version=40)], "50")
    assert names(store) == ["born-after-the-list"]


def test_an_object_that_loses_our_label_and_gets_it_back_is_known_again(make_live) -> None:
    store = Store()
    store.put(POD, make_live(version=5))
    store.remove(POD, make_live(version=6))  # a watch by label says DELETED
    assert not store.put(POD, make_live(version=5))
    assert store.put(POD, make_live(version=7))


def test_a_successor_of_the_same_name_survives_the_word_of_its_predecessors_end(make_live) -> None:
    store = Store()
    store.put(POD, make_live(version=9, uid="second"))
    store.remove(POD, make_live(version=8, uid="first"))
    assert names(store) == ["one"]


def test_a_list_of_one_namespace_says_nothing_of_others(make_live) -> None:
    store = Store()
    store.put(POD, make_live(version=3))
    store.replace(POD, "other", [], "50")
    assert names(store) == ["one"]
    store.replace(POD, "team", [], "50")
    assert names(store) == []


def test_children_are_found_by_their_controller_even_without_labels(make_live) -> None:
    store = Store()
    owner = {"kind": "BatchingPolicy", "name": "chat", "uid": "u-1", "controller": True}
    store.put(DEPLOYMENT, make_live(name="chat-small", labels={}, ownerReferences=[owner]))
    assert len(store.of_policy(DEPLOYMENT, CHAT)) == 1


def test_relabelled_objects_move_to_their_new_policy(make_live) -> None:
    store = Store()
    store.put(POD, make_live(version=1))
    store.put(POD, make_live(version=2, labels={"tailkeeper.dev/policy": "other"}))
    assert names(store) == []
    assert len(store.of_policy(POD, Key("team", "other"))) == 1


def test_pods_of_one_instance(make_live) -> None:
    store = Store()
    store.put(POD, make_live(name="one"))
    labels = {"tailkeeper.dev/policy": "chat", "tailkeeper.dev/model-instance": "large"}
    store.put(POD, make_live(name="two", labels=labels))
    assert [pod["metadata"]["name"] for pod in store.of_policy(POD, CHAT, "large")] == ["two"]
    assert names(store) == ["one", "two"]


def test_policies_by_key(make_live) -> None:
    store = Store()
    store.put(POLICY, make_live(name="chat", labels={}))
    assert store.policy(CHAT) is not None
    assert store.policy(Key("other", "chat")) is None
