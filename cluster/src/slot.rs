//! Which of the 16384 slots of a cluster a key belongs to.

/// How many slots a cluster has.
pub const SLOTS: u16 = 16384;

/// The slot of `key`: CRC16/XMODEM of its hash tag, or of all of it (`keyHashSlot` in the server's `cluster.c`).
///
/// ```
/// use leasehold_cluster::slot::slot;
///
/// assert_eq!(slot(b"123456789"), 12739);
/// assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
/// ```
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The part of `key` that is hashed: what stands between the first `{` and the next `}` behind it, if that is anything;
/// otherwise all of it. A `}` before the first `{` plays no part.
#[must_use]
pub fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// CRC16/XMODEM: polynomial 0x1021, starting from 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let index = (crc >> 8) as u8 ^ byte;
        (crc << 8) ^ TABLE[index as usize]
    })
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};
