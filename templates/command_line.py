def parse_flags(argv):
    """Return the Config that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = raise_wrong_input  # argparse's own prints its usage first
    for field in dataclasses.fields(Config):
        if field.metadata:
            parser.add_argument(f"--{field.name.replace('_', '-')}", **field.metadata)
    return Config(**vars(parser.parse_args(argv)))


def raise_wrong_input(message):
    raise WrongInput(message)
