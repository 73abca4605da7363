//! Clipping of raw audio to exact frames.

use std::ops::Range;

use gst::prelude::*;

/// Returns the number of frames (samples of all channels) in a buffer.
pub fn frames_in(buffer: &gst::BufferRef, audio: &gst_audio::AudioInfo) -> u64 {
    let frames = match buffer.meta::<gst_audio::AudioMeta>() {
        Some(meta) => meta.samples(),
        None => buffer.size() / audio.bpf() as usize,
    };
    frames as u64
}

/// Returns a buffer's duration. If raw audio has no duration, it is computed from the size.
pub fn duration_of(
    buffer: &gst::BufferRef,
    audio: Option<&gst_audio::AudioInfo>,
) -> Option<gst::ClockTime> {
    let of_frames = || {
        let audio = audio?;
        gst::ClockTime::SECOND.mul_div_round(frames_in(buffer, audio), u64::from(audio.rate()))
    };
    buffer.duration().or_else(of_frames)
}

/// Returns the number of frames that start before `time`, counted from a frame at 0. If `time` was rounded to the nanosecond, up
/// or down, it counts as the exact time of its frame.
pub fn frames_before(time: gst::ClockTime, rate: u32) -> Option<u64> {
    let ns = time.nseconds().saturating_sub(ROUNDING_NS);
    ns.mul_div_ceil(u64::from(rate), gst::ClockTime::SECOND.nseconds())
}

/// Maximum error of the difference of two times that were rounded to the nanosecond.
const ROUNDING_NS: u64 = 1;

/// Clips a buffer to these frames and sets its time. Returns `None` if the buffer contains none of these frames, or has no time.
pub fn clip_audio(
    buffer: gst::Buffer,
    audio: &gst_audio::AudioInfo,
    frames: Range<u64>,
) -> Option<gst::Buffer> {
    let frames_all = frames_in(&buffer, audio);
    let (first, end) = (frames.start, frames.end.min(frames_all));
    if first >= end {
        return None;
    }
    if first == 0 && end == frames_all {
        return Some(buffer);
    }
    let begin = buffer.pts()?;
    let rate = u64::from(audio.rate());
    let time_of = |frames: u64| gst::ClockTime::SECOND.mul_div_round(frames, rate);
    let lead = time_of(first)?;
    let until = match buffer.duration() {
        Some(duration) if end == frames_all => duration,
        _ => time_of(end)?,
    };
    let (offset, offset_end) = (buffer.offset(), buffer.offset_end());
    let (trim, count) = (
        usize::try_from(first).ok()?,
        usize::try_from(end - first).ok()?,
    );
    let mut rest = gst_audio::audio_buffer_truncate(buffer, audio.bpf(), trim, Some(count));
    let part = rest.make_mut();
    part.set_pts(begin + lead);
    part.set_duration(until.saturating_sub(lead));
    if offset != OFFSET_NONE {
        part.set_offset(offset + first);
        if offset_end != OFFSET_NONE {
            part.set_offset_end(offset + end);
        }
    }
    Some(rest)
}

/// GStreamer's mark for a buffer without an offset.
const OFFSET_NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(frames: u8) -> (gst::Buffer, gst_audio::AudioInfo) {
        gst::init().unwrap();
        let format = gst_audio::AudioFormat::U8;
        let audio = gst_audio::AudioInfo::builder(format, 1000, 1)
            .build()
            .unwrap();
        let mut buffer = gst::Buffer::from_mut_slice((0..frames).collect::<Vec<_>>());
        let inner = buffer.get_mut().unwrap();
        inner.set_pts(gst::ClockTime::SECOND);
        inner.set_duration(u64::from(frames) * gst::ClockTime::MSECOND);
        inner.set_offset(100);
        (buffer, audio)
    }

    /// With frames of 1 ms, the result must be the frames themselves, each with its time.
    #[test]
    fn a_cut_buffer_has_the_selected_frames_with_their_times() {
        let (whole, audio) = buffer(10);
        for (frames, bytes) in [
            (0..10, (0..10).collect::<Vec<u8>>()),
            (3..10, (3..10).collect()),
            (0..4, (0..4).collect()),
            (3..5, vec![3, 4]),
            (8..99, vec![8, 9]),
        ] {
            let part = clip_audio(whole.clone(), &audio, frames.clone()).unwrap();
            assert_eq!(part.map_readable().unwrap().as_slice(), bytes);
            let ms = gst::ClockTime::from_mseconds;
            assert_eq!(part.pts(), Some(ms(1000 + frames.start)));
            assert_eq!(part.duration(), Some(ms(bytes.len() as u64)));
            assert_eq!(part.offset(), 100 + frames.start);
        }
        for none in [4..4, 10..12] {
            assert!(clip_audio(whole.clone(), &audio, none).is_none());
        }
    }
}
