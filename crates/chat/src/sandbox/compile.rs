//! Compiles templates to instructions that charge the budget. Knows nothing of values.

use std::collections::{BTreeMap, HashSet};

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::operators as op;

/// Maximum bytes of a source; published ones have at most 20 kB.
pub(crate) const MAX_SOURCE: usize = 256 << 10;
/// Maximum tokens between `{%` and `%}`, which bounds the nesting of expressions.
const MAX_TOKENS: usize = 2048;
/// Maximum bytes that constant folding may create.
const MAX_CONSTANTS: usize = 32 << 20;
/// Number of filters that the interpreter caches by index.
const MAX_LOCALS: u8 = 50;

/// A compiled template.
pub(crate) struct Program<'s> {
    pub instructions: Instructions<'s>,
    pub blocks: BTreeMap<&'s str, Instructions<'s>>,
    /// Sets every attribute that the template sets on a namespace `ns` to none.
    pub clear: Instructions<'s>,
}

/// # Errors
/// The source exceeds a limit or is not valid Jinja.
pub(crate) fn compile<'s>(
    name: &'s str,
    source: &'s str,
    syntax: SyntaxConfig,
) -> Result<Program<'s>, Error> {
    if source.len() > MAX_SOURCE {
        return Err(refusal(format!("it has {} bytes, more than {MAX_SOURCE}", source.len())));
    }
    check_tokens(source, syntax.clone())?;
    let ast = parse(source, name, syntax)?;
    let mut constants = ConstantBudget { left: MAX_CONSTANTS };
    constants.statement(&ast)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&ast);
    let (instructions, blocks) = generator.finish();
    let mut attributes = HashSet::new();
    for part in blocks.values().chain([&instructions]) {
        attributes.extend(listed(part).into_iter().filter_map(|(instruction, _)| match instruction {
            Instruction::SetAttr(name) => Some(*name),
            _ => None,
        }));
    }
    let mut clear = Instructions::new(name, source);
    for attribute in attributes {
        clear.add(Instruction::LoadConst(Value::from(())));
        clear.add(Instruction::Lookup("ns"));
        clear.add(Instruction::SetAttr(attribute));
    }
    let blocks = blocks.into_iter().map(|(name, block)| (name, counted(&block))).collect();
    Ok(Program { instructions: counted(&instructions), blocks, clear })
}

fn refusal(message: String) -> Error {
    Error::new(ErrorKind::SyntaxError, message)
}

/// Bounds the nesting of expressions before any recursion.
fn check_tokens(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let mut tokens = 0;
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tokens = 0,
            _ => tokens += 1,
        }
        if tokens > MAX_TOKENS {
            let line = span.start_line;
            return Err(refusal(format!("the tag in line {line} has more than {MAX_TOKENS} tokens")));
        }
    }
    Ok(())
}

/// An instruction and its line.
type Line<'a, 's> = (&'a Instruction<'s>, u16);

fn listed<'a, 's>(instructions: &'a Instructions<'s>) -> Vec<Line<'a, 's>> {
    let line = |at| instructions.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or(0);
    (0..).map_while(|at| Some((instructions.get(at)?, line(at)))).collect()
}

/// The jump target of an instruction.
fn target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Replaces instructions that create or read values of unbounded size by filters of `operators`.
fn counted<'s>(instructions: &Instructions<'s>) -> Instructions<'s> {
    let lines = listed(instructions);
    let targets: HashSet<u32> =
        lines.iter().filter_map(|(i, _)| target(&mut (*i).clone()).copied()).collect();
    let taken = lines.iter().filter_map(|(i, _)| match i {
        Instruction::ApplyFilter(_, _, local) if *local < MAX_LOCALS => Some(*local + 1),
        _ => None,
    });
    let mut filters = Filters { known: Vec::new(), next: MAX_LOCALS, first: taken.max().unwrap_or(0) };
    let mut new = Instructions::new(instructions.name(), instructions.source());
    let mut places = Vec::with_capacity(lines.len() + 1);
    for (at, &(instruction, line)) in lines.iter().enumerate() {
        let last = at.checked_sub(1).filter(|_| !targets.contains(&(at as u32))).map(|last| lines[last].0);
        let constant = match last {
            Some(Instruction::LoadConst(value)) => Some(value),
            _ => None,
        };
        places.push(0);
        let mut first = None;
        for instruction in replacement(instruction, constant, &mut filters) {
            let at = new.add_with_line(instruction, line);
            first.get_or_insert(at);
        }
        places[at] = first.unwrap_or(0);
    }
    places.push((0..).find(|&at| new.get(at).is_none()).unwrap_or(0));
    let mut at = 0;
    while let Some(instruction) = new.get_mut(at) {
        if let Some(target) = target(instruction) {
            *target = places[*target as usize];
        }
        at += 1;
    }
    new
}

/// Indices of our filters, assigned downwards until they meet the template's own.
struct Filters {
    known: Vec<(&'static str, u8)>,
    next: u8,
    first: u8,
}

impl Filters {
    fn apply<'s>(&mut self, name: &'static str, arguments: usize) -> Instruction<'s> {
        let known = self.known.iter().find(|(known, _)| *known == name).map(|(_, local)| *local);
        let local = known.unwrap_or_else(|| {
            let local = if self.next > self.first { self.next - 1 } else { u8::MAX };
            self.next = self.next.saturating_sub(u8::from(local != u8::MAX));
            self.known.push((name, local));
            local
        });
        // No tag has enough tokens for more.
        Instruction::ApplyFilter(name, Some(u16::try_from(arguments).unwrap_or(u16::MAX)), local)
    }
}

/// The replacement of an instruction; `constant` is its last operand if that is one.
fn replacement<'s>(
    instruction: &Instruction<'s>,
    constant: Option<&Value>,
    filters: &mut Filters,
) -> Vec<Instruction<'s>> {
    use Instruction as I;
    let is_scalar = constant.is_some_and(|value| value.as_object().is_none());
    let is_number = constant.is_some_and(Value::is_number);
    let is_list = constant.is_some_and(|value| value.as_object().is_some());
    let mut filter = |name, arguments| vec![filters.apply(name, arguments)];
    match instruction {
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        I::Add if !is_number => filter(op::ADD, 2),
        I::Mul => filter(op::MUL, 2),
        I::StringConcat => filter(op::CONCAT, 2),
        I::Eq if !is_scalar => filter(op::EQ, 2),
        I::Ne if !is_scalar => filter(op::NE, 2),
        I::Lt if !is_scalar => filter(op::LT, 2),
        I::Lte if !is_scalar => filter(op::LE, 2),
        I::Gt if !is_scalar => filter(op::GT, 2),
        I::Gte if !is_scalar => filter(op::GE, 2),
        // A constant list is short and contains no lists.
        I::In if !is_list => filter(op::IN, 2),
        I::CompareAndPreserve(_) => {
            let look = filters.apply(op::LOOK, 1);
            vec![look.clone(), I::Swap, look, I::Swap, instruction.clone()]
        }
        I::GetItem if constant.is_none_or(|value| value.as_str().is_none()) => filter(op::ITEM, 2),
        I::Slice => filter(op::SLICE, 4),
        I::BuildMap(pairs) => filter(op::MAP, 2 * pairs),
        I::BuildList(_) | I::BuildTuple(_) => vec![instruction.clone(), filters.apply(op::OWN, 1)],
        I::MergeKwargs(maps) => filter(op::KWARGS, *maps),
        I::UnpackLists(lists) => vec![filters.apply(op::CHAIN, *lists), I::UnpackLists(1)],
        I::UnpackList(_) | I::PushLoop(_) => vec![filters.apply(op::TOUCH, 1), instruction.clone()],
        // `loop.changed` compares.
        I::CallMethod("changed", _) => vec![filters.apply(op::LOOK, 1), instruction.clone()],
        _ => vec![instruction.clone()],
    }
}

/// Bounds the memory of constant folding.
struct ConstantBudget {
    left: usize,
}

impl ConstantBudget {
    fn statements(&mut self, statements: &[Stmt]) -> Result<(), Error> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt) -> Result<(), Error> {
        match statement {
            Stmt::Template(s) => self.statements(&s.children),
            Stmt::EmitExpr(s) => self.expression(&s.expr),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
            Stmt::ForLoop(s) => {
                self.expressions([&s.target, &s.iter].into_iter().chain(&s.filter_expr))?;
                self.statements(&s.body)?;
                self.statements(&s.else_body)
            }
            Stmt::IfCond(s) => {
                self.expression(&s.expr)?;
                self.statements(&s.true_body)?;
                self.statements(&s.false_body)
            }
            Stmt::WithBlock(s) => {
                self.expressions(s.assignments.iter().flat_map(|(target, value)| [target, value]))?;
                self.statements(&s.body)
            }
            Stmt::Set(s) => self.expressions([&s.target, &s.expr]),
            Stmt::SetBlock(s) => {
                self.expressions([&s.target].into_iter().chain(&s.filter))?;
                self.statements(&s.body)
            }
            Stmt::AutoEscape(s) => {
                self.expression(&s.enabled)?;
                self.statements(&s.body)
            }
            Stmt::FilterBlock(s) => {
                self.expression(&s.filter)?;
                self.statements(&s.body)
            }
            Stmt::Block(s) => self.statements(&s.body),
            Stmt::Import(s) => self.expressions([&s.expr, &s.name]),
            Stmt::FromImport(s) => {
                self.expression(&s.expr)?;
                self.expressions(s.names.iter().flat_map(|(name, alias)| [name].into_iter().chain(alias)))
            }
            Stmt::Extends(s) => self.expression(&s.name),
            Stmt::Include(s) => self.expression(&s.name),
            Stmt::Macro(s) => self.declaration(s),
            Stmt::CallBlock(s) => {
                self.call(&s.call)?;
                self.declaration(&s.macro_decl)
            }
            Stmt::Do(s) => self.call(&s.call),
        }
    }

    fn declaration(&mut self, declaration: &ast::Macro) -> Result<(), Error> {
        self.expressions(declaration.args.iter().chain(&declaration.defaults))?;
        self.statements(&declaration.body)
    }

    fn call(&mut self, call: &ast::Call) -> Result<(), Error> {
        self.expression(&call.expr)?;
        self.arguments(&call.args)
    }

    fn arguments(&mut self, arguments: &[CallArg]) -> Result<(), Error> {
        self.expressions(arguments.iter().map(|argument| match argument {
            CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => e,
        }))
    }

    fn expressions<'e, 's: 'e>(&mut self, all: impl IntoIterator<Item = &'e Expr<'s>>) -> Result<(), Error> {
        all.into_iter().try_for_each(|expression| self.expression(expression))
    }

    /// The compiler folds an expression at every level.
    fn expression(&mut self, expression: &Expr) -> Result<(), Error> {
        if let Some(bytes) = self.size(expression)? {
            return self.take(bytes, expression);
        }
        match expression {
            Expr::Var(_) | Expr::Const(_) => Ok(()),
            Expr::Slice(e) => {
                self.expression(&e.expr)?;
                self.expressions(e.start.iter().chain(&e.stop).chain(&e.step))
            }
            Expr::UnaryOp(e) => self.expression(&e.expr),
            Expr::BinOp(e) => self.expressions([&e.left, &e.right]),
            Expr::Compare(e) => {
                self.expression(&e.expr)?;
                self.expressions(e.ops.iter().map(|next| &next.expr))
            }
            Expr::IfExpr(e) => {
                self.expressions([&e.test_expr, &e.true_expr].into_iter().chain(&e.false_expr))
            }
            Expr::Filter(e) => {
                self.expressions(&e.expr)?;
                self.arguments(&e.args)
            }
            Expr::Test(e) => {
                self.expression(&e.expr)?;
                self.arguments(&e.args)
            }
            Expr::GetAttr(e) => self.expression(&e.expr),
            Expr::GetItem(e) => self.expressions([&e.expr, &e.subscript_expr]),
            Expr::Call(e) => self.call(e),
            Expr::List(e) => self.expressions(&e.items),
            Expr::Tuple(e) => self.expressions(&e.items),
            Expr::Map(e) => self.expressions(e.keys.iter().chain(&e.values)),
        }
    }

    fn take(&mut self, bytes: usize, expression: &Expr) -> Result<(), Error> {
        let line = expression.span().start_line;
        let too_large = || refusal(format!("the constants in line {line} are too large"));
        self.left = self.left.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }

    /// Maximum bytes of an expression if the compiler folds it, as it does with constant operands.
    fn size(&mut self, expression: &Expr) -> Result<Option<usize>, Error> {
        let size = match expression {
            Expr::Const(e) => Some(e.value.as_str().map_or(16, |text| text.len().max(1))),
            Expr::List(e) => self.constants(&e.items)?,
            Expr::Tuple(e) => self.constants(&e.items)?,
            Expr::Map(e) => match (self.constants(&e.keys)?, self.constants(&e.values)?) {
                (Some(keys), Some(values)) => Some(keys + values),
                _ => None,
            },
            Expr::UnaryOp(e) => self.size(&e.expr)?,
            Expr::BinOp(e) => match (self.size(&e.left)?, self.size(&e.right)?) {
                (Some(left), Some(right)) => {
                    let bytes = match e.op {
                        BinOpKind::Mul => repeated(&e.left, left, &e.right, right),
                        // Lists are printed.
                        BinOpKind::Concat => (left + right).saturating_mul(8),
                        _ => left + right,
                    };
                    self.take(bytes / 16, expression)?;
                    Some(bytes)
                }
                _ => None,
            },
            Expr::Compare(e) => {
                let mut size = self.size(&e.expr)?;
                for next in &e.ops {
                    size = match (size, self.size(&next.expr)?) {
                        (Some(left), Some(right)) => Some(left + right),
                        _ => None,
                    };
                }
                size
            }
            _ => None,
        };
        match size {
            Some(bytes) if bytes > MAX_CONSTANTS => self.take(bytes, expression).map(|()| None),
            size => Ok(size),
        }
    }

    fn constants(&mut self, items: &[Expr]) -> Result<Option<usize>, Error> {
        let mut sum = 16;
        for item in items {
            match item {
                Expr::Const(_) => sum += self.size(item)?.unwrap_or(0) + 16,
                _ => return Ok(None),
            }
        }
        Ok(Some(sum))
    }
}

/// The size of a product: numbers are multiplied, anything else is repeated.
fn repeated(left: &Expr, left_size: usize, right: &Expr, right_size: usize) -> usize {
    let times = |factor: &Expr| factor.as_const().and_then(|value| value.as_usize()).unwrap_or(0);
    match (is_number(left), is_number(right)) {
        (true, true) => 16,
        (true, false) => right_size.saturating_mul(times(left)),
        (false, true) => left_size.saturating_mul(times(right)),
        // Possibly a comparison: true is 1.
        (false, false) => usize::MAX,
    }
}

/// Whether an expression consists only of numbers, whose folding is free.
fn is_number(expression: &Expr) -> bool {
    match expression {
        Expr::Const(e) => e.value.is_number(),
        Expr::UnaryOp(e) => is_number(&e.expr),
        Expr::BinOp(e) => is_number(&e.left) && is_number(&e.right),
        _ => false,
    }
}
