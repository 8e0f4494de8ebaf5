//! Which addresses are public: those of the Internet, and of no machine or network of the user's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 that are not public, by IANA's registry of special-purpose addresses, and one
/// that a cloud keeps to itself.
const SPECIAL_V4: [([u8; 4], u32); 17] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    // Carrier-grade NAT.
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    // Link-local, with the metadata services of clouds.
    ([169, 254, 0, 0], 16),
    // Azure's services for the machine that asks.
    ([168, 63, 129, 16], 32),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast, reserved addresses, broadcast.
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
    ([255, 255, 255, 255], 32),
];

/// Parts of 2000::/3, outside of which nothing is public, that are not either: protocol assignments
/// with Teredo, documentation, 6to4, documentation.
const SPECIAL_V6: [([u16; 2], u32); 4] =
    [([0x2001, 0], 23), ([0x2001, 0xdb8], 32), ([0x2002, 0], 16), ([0x3fff, 0], 20)];

pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => embedded(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    let is_in =
        |(network, length): &([u8; 4], u32)| (bits ^ u32::from_be_bytes(*network)) >> (32 - length) == 0;
    !SPECIAL_V4.iter().any(is_in)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let bits = (u32::from(first) << 16) | u32::from(second);
    let is_in = |([high, low], length): &([u16; 2], u32)| {
        (bits ^ ((u32::from(*high) << 16) | u32::from(*low))) >> (32 - length) == 0
    };
    first >> 13 == 1 && !SPECIAL_V6.iter().any(is_in)
}

/// The IPv4 address that packets to this one reach: of mapped addresses, and of NAT64's well-known
/// prefix.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let is_mapped = [a, b, c, d, e] == [0; 5] && f == 0xffff;
    let is_nat64 = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    (is_mapped || is_nat64).then(|| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)))
}
