"""From `kubectl apply` of an example to a served embedding."""

import httpx

from tests.e2e import cluster


def test_an_example_serves_an_embedding_under_its_service_name() -> None:
    """`examples/online-embeddings.yaml`, unchanged, in the default namespace, with its model from a claim."""
    cluster.kubectl("apply", "-f", "examples/online-embeddings.yaml")
    try:
        (name,) = [item["metadata"]["name"] for item in cluster.get("batchingpolicies", "default")["items"]]
        condition = cluster.wait_condition(name, "default", "Ready", "True", timeout_s=180)
        assert condition["reason"]
        instance = cluster.get("batchingpolicy", "default", name)["spec"]["instances"][0]
        url = cluster.address(f"{name}-{instance['name']}", "default")
        body = {"model": instance["model"]["name"], "input": ["late", "on time"]}

        def served() -> httpx.Response:
            """The example's SLA is a fraction of a second: a node that still starts pods may miss it at first."""
            answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=30)
            if answer.status_code != 200:
                raise LookupError(answer.text)
            return answer

        answer = cluster.wait("an embedding is served", served, timeout_s=30)
        vectors = [item["embedding"] for item in answer.json()["data"]]
        assert [len(vector) for vector in vectors] == [384, 384]
        assert all(abs(sum(x * x for x in vector) - 1) < 1e-4 for vector in vectors)
        assert {part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")} >= {
            "hold",
            "busy",
            "slot",
            "exec",
        }
    finally:
        cluster.kubectl("delete", "-f", "examples/online-embeddings.yaml", "--timeout=60s")


def test_service_names_resolve_in_pods(namespace: str) -> None:
    """A client in the cluster finds an instance by its Service's name."""
    cluster.apply(namespace, cluster.policy("names"))
    cluster.wait_condition("names", namespace, "Ready", "True", timeout_s=180)
    (pod,) = cluster.pods(namespace, "names")
    script = (
        "import urllib.request; "
        f"print(urllib.request.urlopen('http://names-minilm.{namespace}.svc.cluster.local:8000/readyz').status)"
    )
    out = cluster.kubectl("exec", "-n", namespace, pod["metadata"]["name"], "--", "python3", "-c", script)
    assert out.strip() == "200"
