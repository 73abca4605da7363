//! Draws pictures as SVG, for light and dark pages. Colours are CSS classes, and the reader's colour scheme selects their
//! values.

use std::fmt::Write as _;

/// A picture that is being drawn. Coordinates are pixels from the top left corner.
pub(super) struct Svg {
    width: u32,
    height: u32,
    title: String,
    body: String,
}

/// Position and size of a rectangle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Frame {
    pub(super) fn new(x: f64, y: f64, width: f64, height: f64) -> Frame {
        Frame {
            x,
            y,
            width,
            height,
        }
    }
}

/// The part of a text that is placed at the text's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// CSS class, light colour and dark colour. The class `ours` is for this project, and `a`, `b` and `c` are for other projects.
const COLOURS: &[(&str, &str, &str)] = &[
    ("paper", "#ffffff", "#10161d"),
    ("panel", "#f4f6f8", "#1a222c"),
    ("ink", "#1b2530", "#e6ebf1"),
    ("soft", "#5b6875", "#9aa7b4"),
    ("grid", "#dfe4e9", "#2b3642"),
    ("ours", "#0b7a75", "#3ed6c3"),
    ("a", "#c2571a", "#ff9d5c"),
    ("b", "#6d4bc3", "#b79cff"),
    ("c", "#77838f", "#8b97a3"),
    ("wash", "#d9efed", "#143a3a"),
    ("heat", "#f9e4d6", "#46291a"),
];

impl Svg {
    /// Starts a picture. It has a background, so that it is legible on any page.
    pub(super) fn new(width: u32, height: u32, title: &str) -> Svg {
        let mut svg = Svg {
            width,
            height,
            title: escaped(title),
            body: String::new(),
        };
        let all = Frame::new(0.0, 0.0, f64::from(width), f64::from(height));
        svg.rect(all, 10.0, "paper");
        svg
    }

    /// Draws a filled rectangle with rounded corners.
    pub(super) fn rect(&mut self, frame: Frame, radius: f64, fill: &str) {
        let Frame {
            x,
            y,
            width,
            height,
        } = frame;
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius}" class="f-{fill}"/>"#
        );
    }

    /// Draws a filled rectangle with rounded corners and an outline.
    pub(super) fn outlined(&mut self, frame: Frame, radius: f64, fill: &str, stroke: &str) {
        let Frame {
            x,
            y,
            width,
            height,
        } = frame;
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius}" class="f-{fill} s-{stroke}" stroke-width="1.5"/>"#
        );
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, radius: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" class="f-{fill}"/>"#
        );
    }

    /// Draws a line along `path`, which is in SVG's path language.
    pub(super) fn path(&mut self, path: &str, stroke: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<path d="{path}" class="l s-{stroke}" stroke-width="{width}"/>"#
        );
    }

    pub(super) fn dashed(&mut self, path: &str, stroke: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<path d="{path}" class="l s-{stroke}" stroke-width="{width}" stroke-dasharray="5 4"/>"#
        );
    }

    /// Draws a filled, translucent shape.
    pub(super) fn area(&mut self, path: &str, fill: &str, opacity: f64) {
        let _ = writeln!(
            self.body,
            r#"<path d="{path}" class="f-{fill}" fill-opacity="{opacity}"/>"#
        );
    }

    /// Draws an arrow head that points right. Its tip is at (x, y).
    pub(super) fn arrow_head(&mut self, x: f64, y: f64, fill: &str) {
        let (back, up, down) = (x - 9.0, y - 5.0, y + 5.0);
        let path = format!("M{x:.1} {y:.1}L{back:.1} {up:.1}L{back:.1} {down:.1}Z");
        self.area(&path, fill, 1.0);
    }

    /// Draws a text. Its base line is at `y`.
    pub(super) fn text(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        size: f64,
        fill: &str,
        text: &str,
    ) {
        self.lettering((x, y), anchor, size, &format!("f-{fill}"), text);
    }

    pub(super) fn bold(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        size: f64,
        fill: &str,
        text: &str,
    ) {
        self.lettering((x, y), anchor, size, &format!("f-{fill} bold"), text);
    }

    fn lettering(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        size: f64,
        class: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" class="{class}">{text}</text>"#
        );
    }

    /// Returns the text of the SVG file.
    pub(super) fn finish(self) -> String {
        let Svg {
            width,
            height,
            title,
            body,
        } = self;
        let style = style();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"{FONTS}\">\n\
             <title>{title}</title>\n<style>\n{style}</style>\n{body}</svg>\n"
        )
    }
}

const FONTS: &str = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

fn style() -> String {
    let rules = |dark: bool| {
        let mut rules = String::new();
        for (class, light_colour, dark_colour) in COLOURS {
            let colour = if dark { dark_colour } else { light_colour };
            let _ = writeln!(
                rules,
                ".f-{class} {{ fill: {colour}; }} .s-{class} {{ stroke: {colour}; }}"
            );
        }
        rules
    };
    format!(
        "{}.l {{ fill: none; stroke-linecap: round; stroke-linejoin: round; }}\n.bold {{ font-weight: 600; }}\n\
         @media (prefers-color-scheme: dark) {{\n{}}}\n",
        rules(false),
        rules(true)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_in_text_are_escaped() {
        let mut svg = Svg::new(10, 10, "a < b");
        svg.text((0.0, 0.0), Anchor::Start, 10.0, "ink", "<&>");
        let text = svg.finish();
        assert!(text.contains("<title>a &lt; b</title>"));
        assert!(text.contains(">&lt;&amp;&gt;</text>"));
    }

    #[test]
    fn both_colour_schemes_define_every_colour() {
        let style = style();
        let (light, dark) = style.split_once("@media").expect("two schemes");
        for (class, light_colour, dark_colour) in COLOURS {
            let rule = |colour| format!(".f-{class} {{ fill: {colour}; }}");
            assert!(light.contains(&rule(light_colour)) && dark.contains(&rule(dark_colour)));
        }
    }
}
