//! `strftime_now`: the time now, in the format a template asks for.
//!
//! English names and no time zones: the caller gives seconds since 1970 already moved to the zone
//! it wants. Start at [`format()`].

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Seconds since 1970 in UTC, by the system's clock.
pub(super) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// `seconds` since 1970 as `pattern` says; the directive that isn't known is the error.
pub(super) fn format(seconds: i64, pattern: &str) -> Result<String, String> {
    let seconds = seconds.clamp(-60_000_000_000, 250_000_000_000); // years of four digits
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = (days + 4).rem_euclid(7) as usize; // 1970 began on a Thursday
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday]);

    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let number = |n: i64, width: usize| match unpadded {
            true => n.to_string(),
            false => format!("{n:0width$}"),
        };
        let text = match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('j') => number(days - days_of(year, 1, 1) + 1, 3),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("%".to_owned()),
        };
        out.push_str(&text);
    }
    Ok(out)
}

/// Year, month and day of the Gregorian calendar, from days since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    // Count from 1 March of a year divisible by 400: leap days then come last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + i64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

/// Days since 1970 of a date.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_era =
        365 * year_of_era + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_c_does() {
        let all = "%Y-%m-%d %H:%M:%S %B %b %A %a %y %j %I %p %-d %%";
        assert_eq!(
            format(0, all).unwrap(),
            "1970-01-01 00:00:00 January Jan Thursday Thu 70 001 12 AM 1 %"
        );
        let text = format(1_709_211_845, all).unwrap();
        assert_eq!(text, "2024-02-29 13:04:05 February Feb Thursday Thu 24 060 01 PM 29 %");
        assert_eq!(format(-1, "%F %T").unwrap(), "1969-12-31 23:59:59");
        assert_eq!(format(0, "%Q"), Err("%Q".to_owned()));
        assert_eq!(format(i64::MAX, "%Y").unwrap().len(), 4);
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(-800_000);
        for days in -799_999..800_000 {
            let today = civil(days);
            assert_eq!(days_of(today.0, today.1, today.2), days);
            let next_day = today.0 == before.0 && today.1 == before.1 && today.2 == before.2 + 1;
            assert!(next_day || today.2 == 1, "{before:?} {today:?}");
            before = today;
        }
    }
}
