"""Entries of a price book that are not prices: tags of devices, and names that vendors use."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from rose.pricing.price_books.entries import TABLES, Entry, Name, Pool


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError('must be a table of tags: { team = "research", cost_centre = "4711" }')
    for name, text in value.items():
        if not isinstance(text, str) or not text or not name:
            raise ValueError(f"must have text in quotes for each tag, and {name!r} has {text!r}")
    return dict(value)


class DeviceTag(Entry):
    """Tags for devices whose runs have no tags. `hardware` is a pattern such as `GPU-7*`."""

    key_fields = ("device", "pool", "device_class", "hardware")
    may_be_a_guess = False
    noun = "rule"

    device: Name | None = None
    pool: Pool | None = None
    device_class: Name | None = Field(default=None, alias="class")
    hardware: Name | None = None
    tags: Annotated[dict[str, str], BeforeValidator(_tags)]

    @property
    def key(self) -> tuple[str, ...]:
        """Return a key such as `pool=serving`. A device and a class may have the same name."""
        fields = type(self).model_fields
        chosen = ((fields[name].alias or name, getattr(self, name)) for name in self.key_fields)
        return tuple(f"{name}={value}" for name, value in chosen if value is not None)

    @property
    def place(self) -> tuple[object, ...]:
        """Return a sort key that puts the entry with the fewest devices first."""
        hardware = self.hardware or ""
        return not self.device, not hardware, -len(hardware), not self.device_class, not self.pool, self.key

    def names(self, device_id: str | None, hardware_id: str | None, pool: str | None, device_class: str | None) -> bool:
        return (
            self.device in (None, device_id)
            and self.pool in (None, pool)
            and self.device_class in (None, device_class)
            and (self.hardware is None or fnmatchcase(hardware_id or "", self.hardware))
        )

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not self.key:
            raise ValueError("names no device: give device, pool, class or hardware, or several")
        return self


def tagging(entries: Iterable[DeviceTag]) -> Callable[..., dict[str, str]]:
    """Return a function that returns a device's tags, from device_id, hardware_id, pool and device_class."""
    widest_first = sorted(entries, key=lambda entry: entry.place, reverse=True)

    def tags(device_id: str | None, hardware_id: str | None, pool: str, device_class: str) -> dict[str, str]:
        tags: dict[str, str] = {}
        for entry in widest_first:
            if entry.names(device_id, hardware_id, pool, device_class):
                tags |= entry.tags
        return tags

    return tags


class VendorResource(Entry):
    """A vendor's name, or pattern of names, for a device, for hardware or for a class."""

    key_fields = ("resource", "sku")
    may_be_a_guess = False
    noun = "meaning"

    resource: Name | None = None
    sku: Name | None = None
    device: Name | None = None
    hardware: Name | None = None
    device_class: Name | None = Field(default=None, alias="class")

    @property
    def key(self) -> tuple[str, ...]:
        if self.resource is None:
            return "sku", str(self.sku)
        return (self.resource,) if self.sku is None else (self.resource, self.sku)

    @property
    def target(self) -> tuple[str, str]:
        """Return (kind, name). The kind is `device`, `devices` (a pattern of hardware) or `class`."""
        if self.device_class is not None:
            return "class", self.device_class
        name = self.device or self.hardware or ""
        return "devices" if any(mark in name for mark in "*?[") else "device", name

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        named = sum(name is not None for name in (self.device, self.hardware, self.device_class))
        if named != 1 or (self.resource is None and self.sku is None):
            raise ValueError("needs resource or sku as the vendor writes it, and one of device, hardware and class")
        return self


FILE_TABLES: dict[str, type[Entry]] = {**TABLES, "device_tag": DeviceTag, "vendor_resource": VendorResource}
