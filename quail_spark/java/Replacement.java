package org.quailspark;

import java.util.Map;
import scala.runtime.AbstractPartialFunction;

/** Another expression for each key of a map; not defined for others. */
public class Replacement extends AbstractPartialFunction {
  private final Map replacements;

  public Replacement(Map replacements) {
    this.replacements = replacements;
  }

  public boolean isDefinedAt(Object expression) {
    return replacements.containsKey(expression);
  }

  public Object apply(Object expression) {
    return replacements.get(expression);
  }

  public Object applyOrElse(Object expression, scala.Function1 otherwise) {
    Object found = replacements.get(expression);
    return found == null ? otherwise.apply(expression) : found;
  }
}
