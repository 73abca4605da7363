//! The content of a fill: one buffer, whose memory all of its buffers share.

use gst::glib;
use gst_video::{VideoConverter, VideoConverterConfig, VideoFrameRef, VideoInfo};

use super::format::frames_per_buffer;

/// Digital silence of one buffer's length.
pub(super) fn silence(info: &gst_audio::AudioInfo) -> Result<gst::Buffer, glib::BoolError> {
    let frames = frames_per_buffer(info) as usize;
    // Use the format's own silence, because zeroes are not silence in all formats.
    let mut samples = vec![0; frames * info.bpf() as usize];
    info.format_info().fill_silence(&mut samples);
    let mut buffer = gst::Buffer::from_slice(samples);
    let fields = buffer.make_mut();
    fields.set_flags(gst::BufferFlags::GAP);
    if info.layout() == gst_audio::AudioLayout::NonInterleaved {
        gst_audio::AudioMeta::add(fields, info, frames, &[])?;
    }
    Ok(buffer)
}

/// Returns a black picture.
pub(super) fn black(info: &VideoInfo) -> Result<gst::Buffer, glib::BoolError> {
    // The black has the colour model and range of the target, because converting these would tint the picture.
    let small = VideoInfo::builder(info.format_info().unpack_format(), SMALL, SMALL)
        .fps(info.fps())
        .interlace_mode(info.interlace_mode())
        .colorimetry(&info.colorimetry())
        .build()?;
    let pixels = gst::Buffer::from_slice(black_pixel(&small).repeat((SMALL * SMALL) as usize));
    let mut config = VideoConverterConfig::new();
    // Other methods would round the values.
    config.set_resampler_method(gst_video::VideoResamplerMethod::Nearest);
    config.set_chroma_mode(gst_video::VideoChromaMode::None);
    config.set_dither_method(gst_video::VideoDitherMethod::None);
    convert(&pixels, &small, info, config)
}

/// Lines and columns of the small picture. Scaling it up keeps it black.
const SMALL: u32 = 16;

/// Returns a black pixel of a format with 8 or 16 bits for each of four components, the last one alpha. Values from ITU-T H.273.
fn black_pixel(info: &VideoInfo) -> Vec<u8> {
    let format = info.format_info();
    let mut pixel = vec![0xff; format.pixel_stride()[0] as usize];
    for component in 0..3 {
        // The value of black in 8 bits.
        let value: u16 = match info.colorimetry().range() {
            _ if format.is_yuv() && component > 0 => 128,
            gst_video::VideoColorRange::Range16_235 => 16,
            _ => 0,
        };
        let at = format.poffset()[component] as usize;
        match format.depth()[component] {
            16 => pixel[at..at + 2].copy_from_slice(&(value << 8).to_ne_bytes()),
            _ => pixel[at] = value as u8,
        }
    }
    pixel
}

/// Returns a decoded picture, scaled to fit, with black bars if its shape differs.
pub(super) fn still(
    sample: &gst::Sample,
    info: &VideoInfo,
) -> Result<gst::Buffer, glib::BoolError> {
    let (Some(caps), Some(pixels)) = (sample.caps(), sample.buffer()) else {
        return Err(glib::bool_error!("the still has no picture or no caps"));
    };
    // The converter does not set these fields.
    let mut caps = caps.to_owned();
    caps.truncate();
    if let Some(structure) = caps.make_mut().structure_mut(0) {
        structure.set("framerate", info.fps());
        structure.set("interlace-mode", info.interlace_mode().to_str());
    }
    let own = VideoInfo::from_caps(&caps)?;
    let mut config = VideoConverterConfig::new();
    let mut shown = [own.width(), own.height()];
    if let Some(crop) = pixels.meta::<gst_video::VideoCropMeta>() {
        let (x, y, width, height) = crop.rect();
        let limit = |n: u32| n.min(i32::MAX as u32) as i32;
        config.set_src_x(limit(x));
        config.set_src_y(limit(y));
        config.set_src_width(Some(limit(width)));
        config.set_src_height(Some(limit(height)));
        shown = [width, height];
    }
    let fit = Fit::of(shown, own.par(), info);
    config.set_dest_x(fit.x);
    config.set_dest_y(fit.y);
    config.set_dest_width(Some(fit.width));
    config.set_dest_height(Some(fit.height));
    config.set_fill_border(true);
    config.set_border_argb(0xff00_0000);
    convert(pixels, &own, info, config)
}

fn convert(
    pixels: &gst::BufferRef,
    from: &VideoInfo,
    to: &VideoInfo,
    config: VideoConverterConfig,
) -> Result<gst::Buffer, glib::BoolError> {
    if to.size() > FRAME_BYTES_MAX {
        return Err(glib::bool_error!(
            "a frame has {} bytes; expected at most {FRAME_BYTES_MAX}",
            to.size()
        ));
    }
    let mut buffer = gst::Buffer::with_size(to.size())?;
    {
        let converter = VideoConverter::new(from, to, Some(config))?;
        let source = VideoFrameRef::from_buffer_ref_readable(pixels, from)?;
        let mut painted = VideoFrameRef::from_buffer_ref_writable(buffer.make_mut(), to)?;
        converter.frame_ref(&source, &mut painted);
    }
    Ok(buffer)
}

/// Maximum size of a frame: four times a frame of 8K with 16 bits for each of four components. Caps may ask for more than the
/// memory holds.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// Position of a picture in a frame.
#[derive(Debug, PartialEq, Eq)]
struct Fit {
    x: i32,
    y: i32,
    width: i32,
    height: i32,
}

impl Fit {
    /// Fits a picture into a frame at the largest size that its shape allows.
    fn of([width, height]: [u32; 2], ratio: gst::Fraction, to: &VideoInfo) -> Fit {
        let positive = |n: i32| i128::from(n.max(1));
        // Ratio of width to height, in pixels of the frame.
        let wide = i128::from(width.max(1)) * positive(ratio.numer()) * positive(to.par().denom());
        let high = i128::from(height.max(1)) * positive(ratio.denom()) * positive(to.par().numer());
        let (frame_width, frame_height) = (i128::from(to.width()), i128::from(to.height()));
        let (fit_width, fit_height) = if frame_width * high > frame_height * wide {
            ((frame_height * wide + high / 2) / high, frame_height)
        } else {
            (frame_width, (frame_width * high + wide / 2) / wide)
        };
        // Bars must start and end at whole chroma samples.
        let coarsest = |steps: &[u32]| 1i128 << steps.iter().copied().max().unwrap_or(0).min(4);
        let format = to.format_info();
        let place = |fit: i128, frame: i128, step: i128| {
            let fit = if frame - fit < 2 * step {
                frame
            } else {
                (fit / step * step).max(step.min(frame))
            };
            let begin = (frame - fit) / 2 / step * step;
            (begin as i32, fit as i32)
        };
        let (x, width) = place(fit_width, frame_width, coarsest(format.w_sub()));
        let (y, height) = place(fit_height, frame_height, coarsest(format.h_sub()));
        Fit {
            x,
            y,
            width,
            height,
        }
    }
}
