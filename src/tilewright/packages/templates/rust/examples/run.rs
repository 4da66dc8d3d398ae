//! Runs the model once, on zeros, and prints the shapes of its outputs.

fn main() -> Result<(), @name@::Error> {
    let mut model = @name@::Model::new()?;
@buffers@
    let outputs = model.@call@(@name@::@prefix@Inputs {
@arguments@
    })?;
@prints@
    Ok(())
}
