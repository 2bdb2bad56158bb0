//! Groups of parameters with settings of their own.

use crate::graph::{GraphError, Persistent};

/// Parameters that are treated in another way than the optimizer's rule says.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Which.
    pub select: Select,
    /// Pull towards 0, instead of the rule's.
    pub weight_decay: f32,
    /// Multiplies the learning rate; 0 keeps the parameters as they are but for weight decay that goes through no learning rate.
    pub lr_factor: f64,
}

/// Chooses parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Those with at most one dimension: biases, and scales and shifts of norms.
    Vectors,
    /// Those whose name fits one of these patterns, in which `*` stands for any characters or none: `*.bias`, `encoder.*`, `fc.weight`.
    Named(Vec<String>),
}

impl Select {
    fn selects(&self, parameter: &Persistent) -> bool {
        match self {
            Select::Vectors => parameter.ty.dims().len() <= 1,
            Select::Named(patterns) => patterns.iter().any(|pattern| fits(pattern, &parameter.name)),
        }
    }
}

/// Number of the parameter's group: 0 if none selects it, else one more than the group's index.
pub(super) fn of(groups: &[Group], parameter: &Persistent) -> usize {
    groups.iter().position(|group| group.select.selects(parameter)).map_or(0, |index| index + 1)
}

/// Refuses patterns that fit no parameter: a misspelt name would otherwise do nothing.
pub(super) fn check(groups: &[Group], parameters: &[Persistent]) -> Result<(), GraphError> {
    for group in groups {
        let Select::Named(patterns) = &group.select else { continue };
        for pattern in patterns {
            if !parameters.iter().any(|parameter| fits(pattern, &parameter.name)) {
                return Err(GraphError::EmptyGroup { pattern: pattern.clone() });
            }
        }
    }
    Ok(())
}

/// Whether a name fits a pattern: its parts between `*` occur in order, the first at the start, the last at the end.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let (Some(mut name), (inner, last)) = (name.strip_prefix(first), rest.rsplit_once('*').unwrap_or(("", rest)))
    else {
        return false;
    };
    for part in inner.split('*') {
        match name.split_once(part) {
            Some((_, behind)) => name = behind,
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("fc.weight", "fc.weight", true),
            ("fc.weight", "fc.weight2", false),
            ("*", "", true),
            ("*", "anything", true),
            ("*.bias", "layer1.0.bias", true),
            ("*.bias", "bias", false),
            ("*.bias", "layer.bias.x", false),
            ("h.*", "h.0.attn", true),
            ("h.*", "wh.0", false),
            ("h.*.ln_*.weight", "h.11.ln_1.weight", true),
            ("h.*.ln_*.weight", "h.11.mlp.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "abbbc", true),
            ("a*b*c", "acb", false),
            ("**", "x", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
