//! Pictures as shapes and labels; colours and fonts are the page's.
//!
//! Measures are in units of a view box that is as wide on a phone as on a desk, so that labels stay
//! legible there. Start with [`lines`].

use serde::Serialize;

const WIDTH: f64 = 440.0;
/// Colours that the page has; further series start over.
pub(super) const COLOURS: usize = 6;
/// Characters of a label that fit above or beside a mark.
const LONGEST_LABEL: usize = 44;

/// One picture.
#[derive(Serialize)]
pub(super) struct Figure {
    title: String,
    /// What it shows, for those who don't see it.
    description: String,
    width: f64,
    height: f64,
    marks: Vec<Mark>,
    /// Colour and name; empty where names stand beside the marks.
    legend: Vec<(usize, String)>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Mark {
    Shape { d: String, class: String, title: String },
    Label { x: f64, y: f64, class: &'static str, text: String },
}

/// One line, or the points of one colour.
pub(super) struct Series {
    /// Which colour and form.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// One bar.
pub(super) struct Bar {
    /// Which colour.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) text: String,
}

/// One point with its 95% interval.
pub(super) struct Interval {
    pub(super) series: usize,
    pub(super) value: f64,
    pub(super) half: f64,
}

/// One configuration of a search.
pub(super) struct Spot {
    pub(super) at: (f64, f64),
    pub(super) name: String,
    pub(super) pareto: bool,
    pub(super) chosen: bool,
}

/// A value that should be exceeded or not, and what it is called.
pub(super) type Limit = (f64, &'static str);

/// Values to places, from 0.
struct Scale {
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value / self.most)
    }

    /// Round values up to the most, about `count` of them.
    fn ticks(&self, count: f64) -> Vec<f64> {
        let rough = self.most / count;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough);
        let step = step.unwrap_or(self.most);
        (0..).map(|i| i as f64 * step).take_while(|v| *v <= self.most * 1.0001).collect()
    }
}

/// `values`' maximum with some room, above 0.
fn most(values: impl Iterator<Item = f64>) -> f64 {
    match values.fold(0.0, f64::max) {
        0.0 => 1.0,
        most => most * 1.08,
    }
}

impl Figure {
    fn new(title: &str, description: String, height: f64) -> Figure {
        let (title, marks, legend) = (title.to_owned(), Vec::new(), Vec::new());
        Figure { title, description, width: WIDTH, height, marks, legend }
    }

    fn shape(&mut self, d: String, class: impl Into<String>, title: impl Into<String>) {
        self.marks.push(Mark::Shape { d, class: class.into(), title: title.into() });
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.shape(format!("M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}"), class, "");
    }

    fn label(&mut self, (x, y): (f64, f64), class: &'static str, text: impl Into<String>) {
        let text: String = text.into();
        let short = text.chars().count() > LONGEST_LABEL;
        let cut = |text: &str| text.chars().take(LONGEST_LABEL - 1).chain(['…']).collect();
        let text = if short { cut(&text) } else { text };
        self.marks.push(Mark::Label { x, y, class, text });
    }

    /// Axes with a grid for points, labelled.
    fn axes(&mut self, x: &Scale, y: &Scale, x_label: &str, y_label: &str) {
        for tick in y.ticks(4.0) {
            let at = y.place(tick);
            self.line((x.from, at), (x.to, at), "grid");
            self.label((x.from - 6.0, at + 4.0), "end", number(tick));
        }
        for tick in x.ticks(4.0) {
            let at = x.place(tick);
            self.line((at, y.from), (at, y.from + 4.0), "axis");
            self.label((at, y.from + 17.0), "middle", number(tick));
        }
        self.line((x.from, y.from), (x.to, y.from), "axis");
        self.label((x.to, y.from + 33.0), "end", x_label);
        self.label((x.from - 40.0, y.to - 12.0), "start", y_label);
    }

    fn horizontal_limit(&mut self, x: &Scale, y: &Scale, (value, name): Limit) {
        let at = y.place(value);
        self.line((x.from, at), (x.to, at), "limit");
        self.label((x.to, at - 5.0), "end limit", name);
    }
}

/// A number of an axis.
fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 100.0),
        v if v >= 1e4 => format!("{}k", (v / 10.0).round() / 100.0),
        v => format!("{}", (v * 1e4).round() / 1e4),
    }
}

fn colour(series: usize) -> usize {
    series % COLOURS
}

/// Speed over tokens in the context: a line for each series.
pub(super) fn lines(title: &str, series: &[Series], limit: Option<Limit>) -> Figure {
    let points = || series.iter().flat_map(|s| s.points.iter().copied());
    let x = Scale { most: most(points().map(|p| p.0)), from: 46.0, to: WIDTH - 20.0 };
    let highest = points().map(|p| p.1).chain(limit.map(|l| l.0));
    let y = Scale { most: most(highest), from: 220.0, to: 28.0 };
    let each = series.iter().map(|s| {
        let points = s.points.iter().map(|(x, y)| format!("{y:.1} at {x:.0}"));
        format!("{}: {}", s.name, points.collect::<Vec<_>>().join(", "))
    });
    let description = format!(
        "Tokens per second by tokens in the context. {}.",
        each.collect::<Vec<_>>().join("; ")
    );
    let mut figure = Figure::new(title, description, 262.0);
    figure.axes(&x, &y, "tokens in the context", "tokens/s");
    for s in series {
        let i = s.index;
        let places: Vec<_> = s.points.iter().map(|p| (x.place(p.0), y.place(p.1))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        figure.shape(format!("M{}", path.join("L")), format!("line s{}", colour(i)), "");
        for (place, value) in places.iter().zip(&s.points) {
            let title = format!("{}: {:.1} tokens/s after {:.0}", s.name, value.1, value.0);
            figure.shape(symbol(i, *place), format!("dot s{}", colour(i)), title);
        }
    }
    if let Some(limit) = limit {
        figure.horizontal_limit(&x, &y, limit);
    }
    figure.legend = series.iter().map(|s| (s.index, s.name.clone())).collect();
    figure
}

/// A bar for each model, named above it; nothing where there are none.
pub(super) fn bars(
    title: &str,
    description: &str,
    bars: &[Bar],
    limit: Option<Limit>,
) -> Option<Figure> {
    if bars.is_empty() {
        return None;
    }
    const ROW: f64 = 44.0;
    let values = bars.iter().map(|b| b.value).chain(limit.map(|l| l.0));
    let top = if limit.is_some() { 22.0 } else { 4.0 };
    let height = top + ROW * bars.len() as f64 + 4.0;
    let x = Scale { most: most(values), from: 1.0, to: WIDTH - 80.0 };
    let each = bars.iter().map(|b| format!("{}: {}", b.name, b.text));
    let description = format!("{description} {}.", each.collect::<Vec<_>>().join("; "));
    let mut figure = Figure::new(title, description, height);
    for (i, bar) in bars.iter().enumerate() {
        let y = top + ROW * i as f64;
        let end = x.place(bar.value).max(x.from + 1.0);
        figure.label((x.from, y + 15.0), "start strong", bar.name.as_str());
        let (from, low) = (x.from, y + 38.0);
        let d = format!("M{from:.1} {:.1}H{end:.1}V{low:.1}H{from:.1}Z", y + 21.0);
        figure.shape(
            d,
            format!("bar s{}", colour(bar.index)),
            format!("{}: {}", bar.name, bar.text),
        );
        figure.label((end + 6.0, y + 34.0), "start", bar.text.as_str());
    }
    if let Some((value, name)) = limit {
        let at = x.place(value);
        figure.line((at, top - 4.0), (at, height), "limit");
        // Beside the line, where there is more room.
        let class = if at > WIDTH / 2.0 { "end limit" } else { "start limit" };
        figure.label((at, top - 9.0), class, name);
    }
    Some(figure)
}

/// Shares with their intervals: a row for each benchmark, a point in it for each model.
pub(super) fn intervals(title: &str, names: &[String], rows: &[(String, Vec<Interval>)]) -> Figure {
    const POINT: f64 = 13.0;
    let height_of = |points: &[Interval]| 26.0 + POINT * points.len() as f64;
    let bottom = 8.0 + rows.iter().map(|(_, points)| height_of(points)).sum::<f64>();
    let x = Scale { most: 1.0, from: 16.0, to: WIDTH - 18.0 };
    let each = rows.iter().map(|(task, points)| {
        let points = points.iter().map(|p| {
            format!("{} {:.1}% ± {:.1}", names[p.series], p.value * 100.0, p.half * 100.0)
        });
        format!("{task}: {}", points.collect::<Vec<_>>().join(", "))
    });
    let description =
        format!("Scores with 95% intervals. {}.", each.collect::<Vec<_>>().join("; "));
    let mut figure = Figure::new(title, description, bottom + 24.0);
    for tick in x.ticks(5.0) {
        let at = x.place(tick);
        figure.line((at, 4.0), (at, bottom), "grid");
        figure.label((at, bottom + 17.0), "middle", format!("{:.0}%", tick * 100.0));
    }
    let mut y = 4.0;
    for (task, points) in rows {
        figure.label((x.from, y + 14.0), "start strong", task.as_str());
        for (i, point) in points.iter().enumerate() {
            let at = y + 25.0 + POINT * i as f64;
            let (low, high) =
                ((point.value - point.half).max(0.0), (point.value + point.half).min(1.0));
            let colour = colour(point.series);
            figure.line((x.place(low), at), (x.place(high), at), &format!("line s{colour}"));
            let (name, percent) = (&names[point.series], point.value * 100.0);
            let title = format!("{name}, {task}: {percent:.1}% ± {:.1}", point.half * 100.0);
            let place = (x.place(point.value), at);
            figure.shape(symbol(point.series, place), format!("dot s{colour}"), title);
        }
        y += height_of(points);
    }
    let scored = |i: &usize| rows.iter().any(|(_, points)| points.iter().any(|p| p.series == *i));
    figure.legend = (0..names.len()).filter(scored).map(|i| (i, names[i].clone())).collect();
    figure
}

/// Configurations of a search by size and speed.
pub(super) fn scatter(title: &str, spots: &[Spot], limit: Limit) -> Figure {
    let x = Scale { most: most(spots.iter().map(|s| s.at.0)), from: 46.0, to: WIDTH - 20.0 };
    let highest = spots.iter().map(|s| s.at.1).chain([limit.0]);
    let y = Scale { most: most(highest), from: 220.0, to: 28.0 };
    let pareto: Vec<&str> = spots.iter().filter(|s| s.pareto).map(|s| s.name.as_str()).collect();
    let chosen = spots.iter().find(|s| s.chosen).map_or("none", |s| s.name.as_str());
    let description = format!(
        "Decode speed by parameters of {} configurations. Not beaten in both: {}. Chosen: {chosen}.",
        spots.len(),
        pareto.join(", ")
    );
    let mut figure = Figure::new(title, description, 262.0);
    figure.axes(&x, &y, "parameters", "tokens/s");
    for spot in spots {
        let place = (x.place(spot.at.0), y.place(spot.at.1));
        let group = if spot.chosen { 2 } else { usize::from(!spot.pareto) };
        let class = ["dot s0", "dot other", "dot s1"][group];
        let title = format!("{}: {:.1} tokens/s", spot.name, spot.at.1);
        figure.shape(symbol([0, 0, 3][group], place), class, title);
        if spot.chosen {
            let class = if place.0 > WIDTH / 2.0 { "end strong" } else { "start strong" };
            figure.label((place.0, place.1 - 9.0), class, spot.name.as_str());
        }
    }
    figure.horizontal_limit(&x, &y, limit);
    figure.legend = vec![(0, "not beaten in size and speed".into()), (1, "chosen".into())];
    figure
}

/// A mark whose form differs too, for who doesn't tell colours apart.
fn symbol(series: usize, (x, y): (f64, f64)) -> String {
    match series % 4 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7v7h-7Z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4.6 8h-9.2Z", y - 5.0),
        _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5Z", y - 5.0),
    }
}
