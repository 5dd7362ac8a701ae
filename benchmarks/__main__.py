"""python -m benchmarks: Heed beside CTranslate2, Hugging Face and the loop without a cache."""

if __name__ == "__main__":  # not in the processes that are measured, which import this file too
    import typer

    from benchmarks.run import main

    typer.run(main)
