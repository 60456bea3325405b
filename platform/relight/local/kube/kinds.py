"""The kinds that local mode's API knows, in one table.

Three treatments. *acted*: something here reads the object and does what it says (or it is data for others: Secret,
ConfigMap, Event, Lease). *inert*: stored and listed so that the same manifests apply as on a cluster, answered with a
warning that nothing enforces it. *empty*: listed, always empty, because ``kubectl get all`` and ``kn`` ask for it;
nothing can be created. Whatever is not in the table is 404.

Names, short names and categories are those of Kubernetes 1.36 and of Knative's custom resource definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Treatment = Literal["acted", "inert", "empty"]


@dataclass(frozen=True)
class Kind:
    """One resource: how it is named in paths, in manifests and by people, and what local mode does with it."""

    group: str
    """Empty for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    treatment: Treatment = "acted"
    status: bool = True
    """Whether status is a subresource: then writes of the object leave it alone, and it has a path of its own."""
    custom: bool = False
    """Defined by a CustomResourceDefinition on a cluster: no strategic merge patches, and tables by JSON path."""

    @property
    def api_version(self) -> str:
        """``serving.knative.dev/v1``; ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """The name in messages: ``services.serving.knative.dev``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def kind_group(self) -> str:
        """The other name in messages: ``Service.serving.knative.dev``, ``Pod``."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def __str__(self) -> str:
        return self.resource


_ALL = ("all",)


def _serving(kind: str, plural: str, *short: str) -> Kind:
    categories = ("all", "knative", "serving")
    return Kind("serving.knative.dev", "v1", kind, plural, short_names=short, categories=categories, custom=True)


def _eventing(
    group: str,
    version: str,
    kind: str,
    plural: str,
    *short: str,
    also: Iterable[str],
    treatment: Treatment,
) -> Kind:
    return Kind(
        f"{group}.knative.dev",
        version,
        kind,
        plural,
        short_names=short,
        categories=("all", "knative", *also),
        treatment=treatment,
        custom=True,
    )


NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",))
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", short_names=("cm",), status=False)
SECRET = Kind("", "v1", "Secret", "secrets", status=False)
EVENT = Kind("", "v1", "Event", "events", short_names=("ev",), status=False)
POD = Kind("", "v1", "Pod", "pods", short_names=("po",), categories=_ALL)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", status=False)
SERVICE = _serving("Service", "services", "kservice", "ksvc")
CONFIGURATION = _serving("Configuration", "configurations", "config", "cfg")
REVISION = _serving("Revision", "revisions", "rev")
ROUTE = _serving("Route", "routes", "rt")
POD_AUTOSCALER = Kind(
    "autoscaling.internal.knative.dev",
    "v1alpha1",
    "PodAutoscaler",
    "podautoscalers",
    short_names=("kpa", "pa"),
    categories=("knative-internal", "autoscaling"),
    custom=True,
)
BROKER = _eventing("eventing", "v1", "Broker", "brokers", also=("eventing",), treatment="acted")
TRIGGER = _eventing("eventing", "v1", "Trigger", "triggers", also=("eventing",), treatment="acted")
_CHANNELS = ("messaging", "channel")
SEQUENCE = _eventing("flows", "v1", "Sequence", "sequences", also=("flows",), treatment="acted")
PARALLEL = _eventing("flows", "v1", "Parallel", "parallels", also=("flows",), treatment="acted")
CHANNEL = _eventing("messaging", "v1", "Channel", "channels", "ch", also=_CHANNELS, treatment="acted")
IN_MEMORY_CHANNEL = _eventing(
    "messaging", "v1", "InMemoryChannel", "inmemorychannels", "imc", also=_CHANNELS, treatment="acted"
)
SUBSCRIPTION = _eventing(
    "messaging", "v1", "Subscription", "subscriptions", "sub", also=("messaging",), treatment="acted"
)
PING_SOURCE = _eventing("sources", "v1", "PingSource", "pingsources", also=("sources",), treatment="acted")
REDIS_STREAM_SOURCE = _eventing(
    "sources", "v1alpha1", "RedisStreamSource", "redisstreamsources", also=("eventing", "sources"), treatment="acted"
)
KAFKA_SOURCE = _eventing(
    "sources", "v1", "KafkaSource", "kafkasources", also=("eventing", "sources"), treatment="acted"
)
RABBITMQ_SOURCE = _eventing(
    "sources",
    "v1alpha1",
    "RabbitmqSource",
    "rabbitmqsources",
    "rmqsource",
    also=("eventing", "sources", "importers"),
    treatment="acted",
)
NATS_JETSTREAM_CHANNEL = _eventing(
    "messaging",
    "v1alpha1",
    "NatsJetStreamChannel",
    "natsjetstreamchannels",
    "natsjsmc",
    also=_CHANNELS,
    treatment="acted",
)
KAFKA_SINK = _eventing("eventing", "v1alpha1", "KafkaSink", "kafkasinks", also=("eventing",), treatment="acted")
REDIS_STREAM_SINK = _eventing(
    "sinks", "v1alpha1", "RedisStreamSink", "redisstreamsinks", also=("eventing", "sink"), treatment="acted"
)

_ACTED = (
    NAMESPACE,
    CONFIG_MAP,
    SECRET,
    EVENT,
    POD,
    LEASE,
    SERVICE,
    CONFIGURATION,
    REVISION,
    ROUTE,
    POD_AUTOSCALER,
    BROKER,
    TRIGGER,
    SEQUENCE,
    PARALLEL,
    CHANNEL,
    IN_MEMORY_CHANNEL,
    SUBSCRIPTION,
    PING_SOURCE,
    REDIS_STREAM_SOURCE,
    KAFKA_SOURCE,
    RABBITMQ_SOURCE,
    NATS_JETSTREAM_CHANNEL,
    KAFKA_SINK,
    REDIS_STREAM_SINK,
)

_INERT = (
    Kind("", "v1", "Service", "services", short_names=("svc",), categories=_ALL, treatment="inert"),
    Kind("", "v1", "ServiceAccount", "serviceaccounts", short_names=("sa",), treatment="inert", status=False),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), treatment="inert"),
    Kind(
        "",
        "v1",
        "PersistentVolume",
        "persistentvolumes",
        namespaced=False,
        short_names=("pv",),
        treatment="inert",
    ),
    Kind("", "v1", "ResourceQuota", "resourcequotas", short_names=("quota",), treatment="inert"),
    Kind("", "v1", "LimitRange", "limitranges", short_names=("limits",), treatment="inert", status=False),
    Kind("apps", "v1", "DaemonSet", "daemonsets", short_names=("ds",), categories=_ALL, treatment="inert"),
    Kind("apps", "v1", "Deployment", "deployments", short_names=("deploy",), categories=_ALL, treatment="inert"),
    Kind("batch", "v1", "CronJob", "cronjobs", short_names=("cj",), categories=_ALL, treatment="inert"),
    Kind("batch", "v1", "Job", "jobs", categories=_ALL, treatment="inert"),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",), treatment="inert"),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", short_names=("pdb",), treatment="inert"),
    Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", treatment="inert", status=False),
    Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", treatment="inert", status=False),
    Kind(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "clusterroles",
        namespaced=False,
        treatment="inert",
        status=False,
    ),
    Kind(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        namespaced=False,
        treatment="inert",
        status=False,
    ),
    Kind(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        namespaced=False,
        short_names=("pc",),
        treatment="inert",
        status=False,
    ),
)

_EMPTY = (
    Kind("", "v1", "ReplicationController", "replicationcontrollers", True, ("rc",), _ALL, "empty"),
    Kind("", "v1", "Node", "nodes", False, ("no",), (), "empty"),
    Kind("apps", "v1", "ReplicaSet", "replicasets", True, ("rs",), _ALL, "empty"),
    Kind("apps", "v1", "StatefulSet", "statefulsets", True, ("sts",), _ALL, "empty"),
    Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, ("hpa",), _ALL, "empty"),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        False,
        ("crd", "crds"),
        ("api-extensions",),
        "empty",
    ),
    Kind(
        "serving.knative.dev",
        "v1beta1",
        "DomainMapping",
        "domainmappings",
        True,
        ("dm",),
        ("all", "knative", "serving"),
        "empty",
        custom=True,
    ),
    _eventing("eventing", "v1beta3", "EventType", "eventtypes", also=("eventing",), treatment="empty"),
    _eventing("eventing", "v1alpha1", "EventPolicy", "eventpolicies", also=("eventing",), treatment="empty"),
    _eventing("eventing", "v1alpha1", "EventTransform", "eventtransforms", also=("eventing",), treatment="empty"),
    _eventing("eventing", "v1alpha1", "RequestReply", "requestreplies", "rr", also=("eventing",), treatment="empty"),
    _eventing("messaging", "v1beta1", "KafkaChannel", "kafkachannels", "kc", also=_CHANNELS, treatment="empty"),
    _eventing("sinks", "v1alpha1", "IntegrationSink", "integrationsinks", also=("sink",), treatment="empty"),
    _eventing("sinks", "v1alpha1", "JobSink", "jobsinks", also=("eventing", "sink"), treatment="empty"),
    _eventing("sources", "v1", "ApiServerSource", "apiserversources", also=("sources",), treatment="empty"),
    _eventing("sources", "v1", "ContainerSource", "containersources", also=("sources",), treatment="empty"),
    _eventing("sources", "v1", "SinkBinding", "sinkbindings", also=("sources", "bindings"), treatment="empty"),
    _eventing("sources", "v1alpha1", "IntegrationSource", "integrationsources", also=("sources",), treatment="empty"),
)

KINDS: tuple[Kind, ...] = (*_ACTED, *_INERT, *_EMPTY)

_BY_PLURAL = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
_BY_KIND = {(kind.api_version, kind.kind): kind for kind in KINDS}


def by_plural(group: str, version: str, plural: str) -> Kind | None:
    """The kind that a path names; None where there is none."""
    return _BY_PLURAL.get((group, version, plural))


def by_kind(api_version: str, kind: str) -> Kind | None:
    """The kind that a manifest names; None where there is none."""
    return _BY_KIND.get((api_version, kind))


def groups() -> dict[str, dict[str, list[Kind]]]:
    """group → version → kinds, in the order of the table; a group's most stable version comes first."""
    found: dict[str, dict[str, list[Kind]]] = {}
    for kind in KINDS:
        found.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    return {group: dict(sorted(versions.items(), key=_stability)) for group, versions in found.items()}


def _stability(item: tuple[str, object]) -> tuple[int, str]:
    version = item[0]
    rank = 2 if "alpha" in version else 1 if "beta" in version else 0
    return rank, version
