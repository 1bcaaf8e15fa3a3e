//! Decimal numbers without allocation and without `fmt`.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

/// The digits of a 64-bit number, with its sign.
///
/// `u64::MAX` has 20 digits and `i64::MIN` 19 and a sign, so 20 bytes hold either.
pub(super) struct Decimal {
    /// Filled from its end.
    text: [u8; 20],
    /// How many bytes at the start are unused.
    start: usize,
}

impl Decimal {
    pub(super) fn unsigned(mut n: u64) -> Self {
        let mut text = [b'0'; 20];
        let mut start = text.len();
        for place in text.iter_mut().rev() {
            start = start.saturating_sub(1);
            *place = b'0' | (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        Self { text, start }
    }

    pub(super) fn signed(n: i64) -> Self {
        let mut this = Self::unsigned(n.unsigned_abs());
        if n < 0 {
            this.start = this.start.saturating_sub(1);
            if let Some(place) = this.text.get_mut(this.start) {
                *place = b'-';
            }
        }
        this
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.text.get(self.start..).unwrap_or_default()
    }
}
