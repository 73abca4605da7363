//! The duration of an Opus packet (RFC 6716, section 3.1).

/// RTP clock rate of Opus (RFC 7587, section 4.1). It is the same at any encoded rate.
pub const CLOCK_RATE_HZ: u32 = threadbare_rtp_types::format::OPUS_CLOCK_HZ;

/// Returns the number of samples at [`CLOCK_RATE_HZ`] in a packet; `None` if it is not an Opus packet.
#[must_use]
pub fn packet_samples(payload: &[u8]) -> Option<u32> {
    let toc = *payload.first()?;
    let frame = match toc >> 3 {
        // "The 32 configurations [...] 10, 20, 40, 60 ms" for SILK, "10, 20 ms" for hybrid, "2.5, 5, 10, 20 ms" for CELT.
        config @ 0..=11 => [480, 960, 1920, 2880][usize::from(config % 4)],
        config @ 12..=15 => [480, 960][usize::from(config % 2)],
        config => [120, 240, 480, 960][usize::from(config % 4)],
    };
    let frames = match toc & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u32::from(payload.get(1)? & 0x3f),
    };
    // "the total duration [...] MUST NOT exceed 120 ms".
    Some(frame * frames).filter(|samples| (1..=SAMPLES_MAX).contains(samples))
}

/// 120 ms.
const SAMPLES_MAX: u32 = CLOCK_RATE_HZ / 1000 * 120;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 6716, section 3.1, in tenths of a millisecond.
    const FRAMES: [[u32; 4]; 8] = [
        [100, 200, 400, 600], // SILK, narrowband
        [100, 200, 400, 600], // SILK, medium band
        [100, 200, 400, 600], // SILK, wideband
        [100, 200, 100, 200], // hybrid, super-wideband and fullband
        [25, 50, 100, 200],   // CELT, narrowband
        [25, 50, 100, 200],   // CELT, wideband
        [25, 50, 100, 200],   // CELT, super-wideband
        [25, 50, 100, 200],   // CELT, fullband
    ];

    #[test]
    fn every_packet_configuration_has_the_length_of_the_rfc() {
        for config in 0..32_u8 {
            let tenths = FRAMES[usize::from(config / 4)][usize::from(config % 4)];
            let one = tenths * CLOCK_RATE_HZ / 10_000;
            assert_eq!(packet_samples(&[config << 3]), Some(one), "{config}");
            assert_eq!(packet_samples(&[config << 3 | 4 | 1]), Some(2 * one));
            assert_eq!(packet_samples(&[config << 3 | 2]), Some(2 * one));
            for frames in 0..64 {
                let expected = Some(one * u32::from(frames)).filter(|n| *n > 0 && *n <= 5760);
                assert_eq!(packet_samples(&[config << 3 | 3, 0x80 | frames]), expected);
            }
        }
        assert_eq!(packet_samples(&[]), None);
        assert_eq!(packet_samples(&[3]), None);
    }
}
