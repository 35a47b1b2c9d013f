//! Speed over context length and what a search found, as SVG pictures.

use std::path::Path;

use koudai::PartialFile;
use plotters::prelude::*;

use crate::bench::Depth;
use crate::search::{Configuration, Study};

/// Draws decode and prefill speed over depth to `path`, beside it first. `title` stands above.
pub fn speed_over_depth(path: &Path, title: &str, depths: &[Depth]) -> std::io::Result<()> {
    let mut svg = String::new();
    draw(&mut svg, title, depths).map_err(|e| std::io::Error::other(e.to_string()))?;
    PartialFile::write(path, svg.as_bytes())
}

type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

fn draw(svg: &mut String, title: &str, depths: &[Depth]) -> Drawn {
    let area = SVGBackend::with_string(svg, (800, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(title, ("sans-serif", 20))?;
    let halves = area.split_evenly((2, 1));
    let decode: Vec<_> = depths.iter().map(|d| (d.depth as f64, d.decode_tps)).collect();
    let prefill: Vec<_> = depths.iter().map(|d| (d.depth as f64, d.prefill_tps)).collect();
    panel(&halves[0], "decode, tokens/s", &decode)?;
    panel(&halves[1], "prefill, tokens/s", &prefill)?;
    area.present()
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    label: &str,
    points: &[(f64, f64)],
) -> Drawn {
    let most = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most(|p| p.0) * 1.02, 0.0..most(|p| p.1) * 1.1)?;
    chart.configure_mesh().x_desc("tokens in the context").y_desc(label).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE))?;
    chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, BLUE.filled())))?;
    Ok(())
}

/// Draws decoding speed and peak memory of a search's configurations over their parameters to `path`,
/// beside it first, with the limits as lines.
///
/// Green keeps both limits, orange one, red none; what was only predicted is hollow, what no other
/// beats has a ring, and the chosen one has its name.
pub fn configurations(path: &Path, study: &Study) -> std::io::Result<()> {
    let mut svg = String::new();
    draw_study(&mut svg, study).map_err(|e| std::io::Error::other(e.to_string()))?;
    PartialFile::write(path, svg.as_bytes())
}

fn draw_study(svg: &mut String, study: &Study) -> Drawn {
    let area = SVGBackend::with_string(svg, (900, 900)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{}, {}, context {}", study.machine.cpu, study.isa, study.limits.context);
    let area = area.titled(&title, ("sans-serif", 20))?;
    let halves = area.split_evenly((2, 1));
    scatter(&halves[0], study, "decode, tokens/s", study.limits.decode_tps, |c| c.decode_tps)?;
    let megabytes = |c: &Configuration| c.peak_bytes as f64 / 1e6;
    scatter(&halves[1], study, "peak memory, MB", study.limits.peak_mb, megabytes)?;
    area.present()
}

fn scatter(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    study: &Study,
    label: &str,
    limit: f64,
    value: impl Fn(&Configuration) -> f64,
) -> Drawn {
    let all = &study.configurations;
    let place = |c: &Configuration| (c.parameters as f64 / 1e6, value(c));
    let most = |f: fn((f64, f64)) -> f64| all.iter().map(|c| f(place(c))).fold(0.0, f64::max);
    let (right, top) = (most(|p| p.0) * 1.05, most(|p| p.1).max(limit) * 1.1);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_desc("parameters, millions")
        .y_desc(label)
        .draw()?;
    chart.draw_series(LineSeries::new([(0.0, limit), (right, limit)], BLACK.stroke_width(1)))?;
    for c in all {
        let color = match (c.meets_memory, c.meets_speed) {
            (true, true) => RGBColor(0, 140, 60),
            (false, false) => RGBColor(200, 30, 30),
            _ => RGBColor(230, 140, 0),
        };
        let style = if c.measured { color.filled() } else { color.stroke_width(1) };
        chart.draw_series([Circle::new(place(c), 4, style)])?;
        if c.pareto {
            chart.draw_series([Circle::new(place(c), 7, color.stroke_width(1))])?;
        }
        if study.choice.name.as_ref() == Some(&c.name) {
            let text = EmptyElement::at(place(c))
                + Text::new(c.name.clone(), (10, -12), ("sans-serif", 15));
            chart.draw_series([text])?;
        }
    }
    Ok(())
}
