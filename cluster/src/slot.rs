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
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// CRC16/XMODEM: polynomial 0x1021, starting from 0, nothing reflected.
///
/// Four bytes a step: byte by byte, each look-up waits for the one before, about two nanoseconds each.
fn crc16(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let crc = words.iter().fold(0_u16, |crc, [a, b, c, d]| {
        let [high, low] = crc.to_be_bytes();
        TABLES[3][usize::from(a ^ high)]
            ^ TABLES[2][usize::from(b ^ low)]
            ^ TABLES[1][usize::from(*c)]
            ^ TABLES[0][usize::from(*d)]
    });
    rest.iter().fold(crc, |crc, byte| {
        let index = (crc >> 8) as u8 ^ byte;
        (crc << 8) ^ TABLES[0][usize::from(index)]
    })
}

/// `TABLES[n][byte]` is the CRC of `byte` with `n` zero bytes behind it.
static TABLES: [[u16; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        tables[0][index] = crc;
        index += 1;
    }
    let mut zeros = 1;
    while zeros < 4 {
        let mut index = 0;
        while index < 256 {
            let crc: u16 = tables[zeros - 1][index];
            tables[zeros][index] = (crc << 8) ^ tables[0][(crc >> 8) as usize];
            index += 1;
        }
        zeros += 1;
    }
    tables
};
