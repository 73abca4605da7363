//! Builds buffers of a normaliser's output.

use bytemuck::Pod;
use gst_audio::{AudioInfo, AudioMeta};
use threadbare_loudness::{CHANNELS_MAX, Normalizer, Sample};

use super::super::frames::{Format, Kind};

/// Takes this many ready frames into a buffer. It reuses `spare` if that has the right size and no other reference.
///
/// # Errors
/// Fails if memory runs out.
pub(super) fn take(
    normalizer: &mut Normalizer,
    (format, info): (&Format, &AudioInfo),
    frames: usize,
    spare: Option<gst::Buffer>,
) -> Result<gst::Buffer, gst::glib::BoolError> {
    let bytes = frames * format.frame_bytes();
    let is_planar = format.is_planar;
    let mut buffer = match spare.filter(|spare| is_reusable(spare, bytes, is_planar)) {
        Some(spare) => spare,
        None => gst::Buffer::with_size(bytes)?,
    };
    let room = buffer.make_mut();
    room.unset_flags(gst::BufferFlags::all());
    if !fill(normalizer, format, frames, room)? {
        // The spare buffer was not aligned.
        return take(normalizer, (format, info), frames, None);
    }
    if is_planar {
        let mut offsets = [0; CHANNELS_MAX];
        let plane_bytes = frames * format.kind.bytes();
        let offsets = &mut offsets[..format.channels()];
        (offsets.iter_mut().enumerate()).for_each(|(channel, at)| *at = channel * plane_bytes);
        AudioMeta::add(room, info, frames, offsets)?;
    }
    Ok(buffer)
}

/// Whether a buffer can be reused for output. Other metadata than that of the layout would belong to the input audio.
fn is_reusable(buffer: &gst::Buffer, bytes: usize, is_planar: bool) -> bool {
    buffer.size() == bytes
        && buffer.is_writable()
        && buffer.is_all_memory_writable()
        && !is_planar
        && buffer.iter_meta::<gst::Meta>().next().is_none()
}

/// Fills a buffer with ready frames. Returns `false` if its memory is not aligned for these samples; in that case, no frames were
/// taken.
fn fill(
    normalizer: &mut Normalizer,
    format: &Format,
    frames: usize,
    buffer: &mut gst::BufferRef,
) -> Result<bool, gst::glib::BoolError> {
    let mut map = buffer.map_writable()?;
    Ok(match format.kind {
        Kind::I16 => fill_typed::<i16>(normalizer, format, frames, &mut map),
        Kind::I32 => fill_typed::<i32>(normalizer, format, frames, &mut map),
        Kind::F32 => fill_typed::<f32>(normalizer, format, frames, &mut map),
        Kind::F64 => fill_typed::<f64>(normalizer, format, frames, &mut map),
    })
}

fn fill_typed<T: Sample + Pod>(
    normalizer: &mut Normalizer,
    format: &Format,
    frames: usize,
    bytes: &mut [u8],
) -> bool {
    let Ok(samples) = bytemuck::try_cast_slice_mut::<u8, T>(bytes) else {
        return false;
    };
    let taken = if format.is_planar {
        let mut planes: [&mut [T]; CHANNELS_MAX] = std::array::from_fn(|_| Default::default());
        for (plane, part) in planes.iter_mut().zip(samples.chunks_exact_mut(frames)) {
            *plane = part;
        }
        normalizer.take_planar(&mut planes[..format.channels()])
    } else {
        normalizer.take_interleaved(samples)
    };
    debug_assert_eq!(taken, Ok(frames));
    true
}
