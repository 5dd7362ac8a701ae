"""python -m benchmarks: Heed beside CTranslate2, Hugging Face and the loop without a cache."""

import typer

if __name__ == "__main__":  # not in the processes that are measured, which import this file too
    from benchmarks.run import main

    typer.run(main)
