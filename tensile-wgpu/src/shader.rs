//! Compute shaders: WGSL templates, the bindings and parameters they declare, and the text that a driver gets.

use std::fmt::Write as _;

/// A compute shader.
///
/// `source` is WGSL that defines `fn run(group: u32, lane: u32)`: `group` counts workgroups from 0 (also where a grid is folded, and then beyond the
/// number asked for, so it must be guarded), `lane` the invocations of one. In the source `$name` stands for the buffer or snippet of that name, `p.name` for a parameter, and `WG` for
/// the number of invocations in a workgroup.
///
/// All buffers are bound for reading and writing, because regions of one arena share a buffer, and one buffer cannot be bound both ways at once. Buffers
/// that are the same bytes at a launch (an output in place of its input, one tensor as two inputs) become one variable; they need equal element types for that.
#[derive(Debug)]
pub(crate) struct Shader {
    /// Unique among all shaders.
    pub(crate) name: &'static str,
    /// WGSL with `$name` for buffers and snippets.
    pub(crate) source: &'static str,
    /// Name and element type of each buffer, in the order of a dispatch's bindings: `("x", "vec4<f32>")`. At most eight.
    pub(crate) buffers: &'static [(&'static str, &'static str)],
    /// Name and type (`u32`, `i32` or `f32`) of each parameter, in the order of a dispatch's words. At most 32.
    pub(crate) params: &'static [(&'static str, &'static str)],
    /// Name and text of what stands in the source as `$name`.
    pub(crate) snippets: &'static [(&'static str, &'static str)],
    /// WGSL functions put before the source; see [`crate::kernel::library`].
    pub(crate) libraries: &'static [&'static str],
    /// Invocations in a workgroup, at most 256.
    pub(crate) workgroup: u32,
}

impl Shader {
    /// The WGSL for a launch where buffer i is the same bytes as buffer `alias[i]` ≤ i, which is its own alias. Distinct buffers get bindings 0, 1, … in order.
    ///
    /// # Panics
    /// If the template names what is not declared, or aliases differ in element type: a bug of the kernel, which the tests find.
    pub(crate) fn wgsl(&self, alias: &[usize]) -> String {
        assert_eq!(alias.len(), self.buffers.len(), "{}: one alias for each buffer", self.name);
        let mut text = String::new();
        for library in self.libraries {
            text.push_str(library);
            text.push('\n');
        }
        if !self.params.is_empty() {
            text.push_str("struct Params {\n");
            for (name, ty) in self.params {
                writeln!(text, "    {name}: {ty},").expect("strings take all");
            }
            text.push_str("}\nvar<immediate> p: Params;\n");
        }
        writeln!(text, "const WG: u32 = {}u;", self.workgroup).expect("strings take all");
        let mut binding = 0;
        for (index, (name, ty)) in self.buffers.iter().enumerate() {
            if alias[index] == index {
                writeln!(text, "@group(0) @binding({binding}) var<storage, read_write> buf_{name}: array<{ty}>;")
                    .expect("strings take all");
                binding += 1;
            } else {
                let (other, other_ty) = self.buffers[alias[index]];
                assert_eq!(*ty, other_ty, "{}: '{name}' and '{other}' are the same bytes", self.name);
            }
        }
        self.expand(self.source, alias, &mut text);
        text.push_str(
            "\n@compute @workgroup_size(WG)\nfn main(\n    @builtin(workgroup_id) id: vec3<u32>,\n    @builtin(num_workgroups) all: vec3<u32>,\n    \
             @builtin(local_invocation_index) lane: u32,\n) {\n    run(id.y * all.x + id.x, lane);\n}\n",
        );
        text
    }

    /// Appends `source` with every `$name` replaced; snippets may name others.
    fn expand(&self, source: &str, alias: &[usize], text: &mut String) {
        let mut rest = source;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let name = &rest[..end];
            rest = &rest[end..];
            if let Some(index) = self.buffers.iter().position(|(other, _)| *other == name) {
                write!(text, "buf_{}", self.buffers[alias[index]].0).expect("strings take all");
            } else if let Some((_, snippet)) = self.snippets.iter().find(|(other, _)| *other == name) {
                self.expand(snippet, alias, text);
            } else {
                panic!("{}: '${name}' is neither buffer nor snippet", self.name);
            }
        }
        text.push_str(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHADER: Shader = Shader {
        name: "test",
        source: "fn run(group: u32, lane: u32) { let i = group * WG + lane; if i < p.n { $y[i] = $f; } }",
        buffers: &[("x", "f32"), ("y", "f32")],
        params: &[("n", "u32"), ("a", "f32")],
        snippets: &[("f", "p.a * $x[i]")],
        libraries: &[],
        workgroup: 64,
    };

    #[test]
    fn same_bytes_are_one_variable() {
        let apart = SHADER.wgsl(&[0, 1]);
        assert!(apart.contains("buf_y[i] = p.a * buf_x[i];") && apart.contains("@binding(1)"), "{apart}");
        let in_place = SHADER.wgsl(&[0, 0]);
        assert!(in_place.contains("buf_x[i] = p.a * buf_x[i];") && !in_place.contains("@binding(1)"), "{in_place}");
    }
}
