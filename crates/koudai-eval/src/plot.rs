//! Speed over context length, as an SVG picture.

use std::path::Path;

use koudai::PartialFile;
use plotters::prelude::*;

use crate::bench::Depth;

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
