//! A meter's readings as fields of a structure, for messages and statistics.

use threadbare_loudness::{Meter, Mode, ReadError};

/// Adds the readings of the meter's mode, under the names of the stock `ebur128level`. They are loudness in LUFS (minus infinity
/// for silence), range in LU, and peaks of each channel relative to full scale.
pub(crate) fn add_readings(structure: &mut gst::StructureRef, meter: &Meter) {
    structure.set("momentary-loudness", meter.momentary());
    let measured = [
        ("shortterm-loudness", Mode::SHORT_TERM, meter.short_term()),
        ("global-loudness", Mode::INTEGRATED, meter.integrated()),
        (
            "relative-threshold",
            Mode::INTEGRATED,
            meter.relative_threshold(),
        ),
        (
            "loudness-range",
            Mode::RANGE,
            meter.range().map(|range| range.lu),
        ),
    ];
    for (name, mode, value) in measured {
        if let Ok(value) = value
            && meter.mode().contains(mode)
        {
            structure.set(name, value);
        }
    }
    let mut set_peaks = |name, peak: fn(&Meter, usize) -> Result<f64, ReadError>| {
        let peaks: Result<Vec<f64>, _> =
            (0..meter.layout().len()).map(|c| peak(meter, c)).collect();
        if let Ok(peaks) = peaks {
            structure.set(name, gst::Array::new(peaks));
        }
    };
    set_peaks("sample-peak", Meter::sample_peak);
    set_peaks("true-peak", Meter::true_peak);
}
