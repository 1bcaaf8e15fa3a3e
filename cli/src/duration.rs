//! Durations on the command line.

use std::time::Duration;

/// Reads `500ms`, `30s`, `5m`, `1h 30m`, `2days`; a number alone counts seconds and may have a fraction, as for `flock -w`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; for example 500ms, 30s, 5m, 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("0.25", 250),
            ("7", 7_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "-1", "5x", "NaN", "inf", "1e300", "s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
