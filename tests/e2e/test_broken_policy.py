"""A policy that cannot work says why, and its neighbours do not notice."""

import json

from tests.e2e import cluster


def test_a_missing_model_path_is_named_and_the_neighbour_serves(namespace: str) -> None:
    broken = cluster.instance("lost")
    broken["model"] = {"name": "lost", "engine": "encoder", "path": "/models/no-such-model"}
    cluster.apply(namespace, cluster.policy("half", instances=[cluster.instance("minilm"), broken]))
    condition = cluster.wait(
        "Ready=False names the path",
        lambda: (
            (c := cluster.conditions("half", namespace).get("Ready"))
            and c["status"] == "False"
            and "/models/no-such-model" in c["message"]
            and c
        ),
        timeout_s=180,
    )
    assert "lost" in condition["message"]
    cluster.wait(
        "the other instance is ready",
        lambda: (
            [
                i["ready"]
                for i in cluster.get("batchingpolicy", namespace, "half")["status"]["instances"]
                if i["name"] == "minilm"
            ]
            == [True]
        ),
        timeout_s=120,
    )


def test_an_image_that_is_not_there_is_named(namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "worker", "image": "localhost/no-such-image:1"}]}}
    cluster.apply(namespace, cluster.policy("noimage", instances=[cluster.instance("minilm", template=template)]))
    condition = cluster.wait(
        "Ready=False names the image",
        lambda: (
            (c := cluster.conditions("noimage", namespace).get("Ready"))
            and c["status"] == "False"
            and "no-such-image" in c["message"]
            and c
        ),
        timeout_s=60,
    )
    assert condition["reason"]


def test_a_gpu_is_scheduled_and_one_too_many_is_named(namespace: str) -> None:
    """The node is given one `nvidia.com/gpu` by a patch of its status: one pod gets it, the next says why it waits."""
    (node,) = [item["metadata"]["name"] for item in json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]]
    offer = json.dumps({"status": {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "1"}}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", offer)
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
    try:
        cluster.apply(namespace, cluster.policy("first", instances=[cluster.instance("minilm", template=template)]))
        cluster.wait_condition("first", namespace, "Ready", "True", timeout_s=180)
        (pod,) = cluster.pods(namespace, "first")
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"

        cluster.apply(namespace, cluster.policy("second", instances=[cluster.instance("minilm", template=template)]))
        condition = cluster.wait(
            "Ready=False says that no GPU is left",
            lambda: (
                (c := cluster.conditions("second", namespace).get("Ready"))
                and c["status"] == "False"
                and "nvidia.com/gpu" in c["message"]
                and c
            ),
            timeout_s=60,
        )
        assert condition["reason"] == "Unschedulable"
        assert cluster.conditions("first", namespace)["Ready"]["status"] == "True"

        # A surge rollout with all GPUs taken waits for ever: the condition names the way out.
        changed = template | {"metadata": {"annotations": {"team": "search"}}}
        cluster.apply(namespace, cluster.policy("first", instances=[cluster.instance("minilm", template=changed)]))
        cluster.wait(
            "the stuck surge names DrainFirst",
            lambda: any("DrainFirst" in c["message"] for c in cluster.conditions("first", namespace).values()),
            timeout_s=60,
        )
        cluster.kubectl("delete", "batchingpolicy", "second", "-n", namespace)  # or its pod takes the GPU
        drained = cluster.policy(
            "first", instances=[cluster.instance("minilm", template=changed)], rolloutStrategy="DrainFirst"
        )
        cluster.apply(namespace, drained)
        cluster.wait(
            "the drained rollout ends",
            lambda: (
                [p["metadata"].get("annotations", {}).get("team") for p in cluster.pods(namespace, "first")]
                == ["search"]
            ),
            timeout_s=120,
        )
        cluster.wait_condition("first", namespace, "Ready", "True", timeout_s=180)
    finally:
        take = json.dumps(
            [{"op": "remove", "path": f"/status/{where}/nvidia.com~1gpu"} for where in ("capacity", "allocatable")]
        )
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", take)
