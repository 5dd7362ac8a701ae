"""Compare Heed with its peers: python -m benchmarks --help"""

if __name__ == "__main__":  # the processes of the measured systems import this file, too
    import typer

    from benchmarks.run import main

    typer.run(main)
